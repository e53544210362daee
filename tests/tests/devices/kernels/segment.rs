//! What edges bring to nodes, against the CPU.

use super::common::Lcg;
use isograd::ops::{Csr, TieGrad};
use isograd::{DType, Device, Result, Tensor};

type Join = fn(&Tensor, &Tensor, usize) -> Result<Tensor>;

/// The result on a device, and the gradient of the rows.
fn join(f: Join, nodes: usize, x: &Tensor, index: &Tensor, device: &Device) -> [Vec<f64>; 2] {
    let x = x.to_device(device).unwrap().require_grad().unwrap();
    let y = f(&x, &index.to_device(device).unwrap(), nodes).unwrap();
    let dy: Vec<f64> = (0..y.numel()).map(|i| (i % 13) as f64 - 6.0).collect();
    let dy = Tensor::from_vec(dy, y.shape(), device).unwrap().cast(y.dtype()).unwrap();
    y.mul(&dy).unwrap().sum(..).unwrap().backward().unwrap();
    [y.to_f64_vec().unwrap(), x.grad().unwrap().to_f64_vec().unwrap()]
}

/// Lists in local memory and rows in order, segments within a part and over many, words and single elements: whole numbers,
/// whose sums are exact, with many ties.
pub fn all_sizes_and_dtypes(device: &Device) {
    let cpu = isograd_tests::cpu();
    let joins: [(&str, Join); 4] = [
        ("sum", |x, index, nodes| x.scatter_sum(index, Some(nodes))),
        ("mean", |x, index, nodes| x.scatter_mean(index, Some(nodes))),
        ("even", |x, index, nodes| Ok(x.scatter_max(index, Some(nodes), TieGrad::Even)?.0)),
        ("first", |x, index, nodes| Ok(x.scatter_max(index, Some(nodes), TieGrad::First)?.0)),
    ];
    for (edges, nodes, features) in [(40, 7, 8), (3000, 2, 3), (9000, 700, 12), (9000, 3, 5), (20_000, 90_000, 1)] {
        let mut lcg = Lcg(edges as u64);
        let index: Vec<i64> = (0..edges).map(|_| lcg.next(nodes as u64) as i64).collect();
        let index = Tensor::from_vec(index, edges, &cpu).unwrap();
        let x: Vec<f64> = (0..edges * features).map(|_| lcg.next(9) as f64 - 4.0).collect();
        for dtype in [DType::F32, DType::F16, DType::BF16] {
            let x = Tensor::from_vec(x.clone(), (edges, features), &cpu).unwrap().cast(dtype).unwrap();
            for (name, f) in joins {
                let [got, expected] = [device, &cpu].map(|device| join(f, nodes, &x, &index, device));
                assert!(got == expected, "{name} of {edges} edges, {nodes} nodes, {features} {dtype}");
            }
        }
    }
}

/// The softmax of edges: a node with most of the edges, which no thread keeps all of, nodes without edges, edges in the order of their
/// targets and in any other, and heads in words and alone.
pub fn softmax_of_edges(device: &Device) {
    let cpu = isograd_tests::cpu();
    for (edges, nodes, heads, is_sorted) in
        [(3000, 50, 1, false), (3000, 50, 8, true), (900, 700, 3, false), (5000, 1, 4, true)]
    {
        let mut lcg = Lcg(edges as u64);
        let mut index: Vec<i64> =
            (0..edges).map(|i| if i % 3 > 0 { nodes as i64 / 2 } else { lcg.next(nodes as u64) as i64 }).collect();
        let mut starts = vec![0i64; nodes + 1];
        index.iter().for_each(|&node| starts[node as usize + 1] += 1);
        (0..nodes).for_each(|i| starts[i + 1] += starts[i]);
        if is_sorted {
            index.sort_unstable();
        }
        let graph = |device: &Device| {
            let tensor = |values: &[i64]| Tensor::from_slice(values, values.len(), device).unwrap();
            match is_sorted {
                true => Csr::new(&tensor(&starts), &tensor(&index), nodes).unwrap(),
                false => Csr::from_entries(&tensor(&index), &tensor(&index), [nodes, nodes]).unwrap(),
            }
        };
        let x: Vec<f64> = (0..edges * heads).map(|_| lcg.next(9) as f64 - 4.0).collect();
        let x = Tensor::from_vec(x, (edges, heads), &cpu).unwrap().cast(DType::F32).unwrap();
        let [got, expected] = [device, &cpu].map(|device| {
            let x = x.to_device(device).unwrap().require_grad().unwrap();
            let y = x.edge_softmax(&graph(device)).unwrap();
            let dy: Vec<f32> = (0..y.numel()).map(|i| (i % 13) as f32 - 6.0).collect();
            y.mul(&Tensor::from_vec(dy, y.shape(), device).unwrap()).unwrap().sum(..).unwrap().backward().unwrap();
            [y.to_f64_vec().unwrap(), x.grad().unwrap().to_f64_vec().unwrap()]
        });
        for (which, size) in [(0, 1.0), (1, 12.0)] {
            // 32 units of the last place of the largest number, for several stages.
            let furthest = got[which].iter().zip(&expected[which]).map(|(a, b)| (a - b).abs()).fold(0.0, f64::max);
            assert!(furthest <= 32.0 * 6e-8 * size, "{furthest} for {edges} edges, {nodes} nodes, {heads} heads");
        }
    }
}
