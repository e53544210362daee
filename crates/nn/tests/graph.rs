//! Layers of graphs, against dense matrices and sums that are written out.

use crate::common::cpu;
use isograd_core::ops::IndexReduce;
use isograd_core::{DType, Kind, Result, Rng, Tensor};
use isograd_nn::{
    EdgeEnds, GatConv, GatHeads, GatOptions, GatedMessagePassing, GcnConv, GcnOptions, GinConv, Graph, Init, Linear,
    MessagePassing, Module, SageConv, SageOptions, global_add_pool, global_max_pool, global_mean_pool,
};

/// A loop at node 1, a double edge, node 4 without edges that end at it, and node 3 without any.
const EDGES: [[i64; 2]; 8] = [[0, 1], [1, 1], [2, 1], [0, 2], [0, 2], [4, 0], [2, 0], [1, 2]];
const NODES: usize = 5;

fn random(shape: &[usize], seed: u64) -> Result<Tensor> {
    Tensor::rand(shape, -1.0, 1.0, DType::F64, &cpu(), &Rng::new(seed))
}

fn graph_of(edges: &[[i64; 2]], nodes: usize) -> Result<Graph> {
    let ends = |k: usize| Tensor::from_vec(edges.iter().map(|edge| edge[k]).collect(), edges.len(), &cpu());
    Graph::from_edges(&ends(0)?, &ends(1)?, nodes)
}

fn init() -> Init {
    Init::new(&cpu()).seed(3).dtype(DType::F64)
}

fn assert_close(y: &Tensor, expected: &[f64]) {
    let y = y.to_f64_vec().unwrap();
    assert_eq!(y.len(), expected.len());
    for (i, (y, r)) in y.iter().zip(expected).enumerate() {
        assert!((y - r).abs() < 1e-10 || y == r, "element {i} is {y}, expected {r}");
    }
}

/// Edges and weights with one loop at each node in place of its own; `of_loop` has the weight of a loop.
fn with_loops(weights: &[f64], of_loop: impl Fn(usize) -> f64) -> Vec<([usize; 2], f64)> {
    let edges = EDGES.iter().zip(weights).map(|(edge, w)| (edge.map(|v| v as usize), *w));
    let loops = (0..NODES).map(|v| ([v, v], of_loop(v)));
    edges.filter(|([a, b], _)| a != b).chain(loops).collect()
}

#[test]
fn a_graph_has_degrees_loops_and_parts() -> Result<()> {
    let graph = graph_of(&EDGES, NODES)?;
    assert_eq!((graph.nodes(), graph.edges(), graph.graphs()), (5, 8, 1));
    assert_eq!(graph.in_degrees()?.to_vec::<i64>()?, [2, 3, 3, 0, 0]);
    assert_eq!(graph.out_degrees()?.to_vec::<i64>()?, [3, 2, 2, 0, 1]);
    let looped = graph.with_self_loops()?;
    assert_eq!(looped.graph.edges(), 7 + 5);
    assert_eq!(looped.graph.in_degrees()?.to_vec::<i64>()?, [3, 3, 4, 1, 1]);
    let weights = Tensor::arange(8, &cpu())?.cast(DType::F64)?;
    let expected: Vec<f64> =
        with_loops(&[0.0, 1.0, 2.0, 3.0, 4.0, 5.0, 6.0, 7.0], |_| 1.0).iter().map(|(_, w)| *w).collect();
    assert_eq!(looped.weights(&weights)?.to_vec::<f64>()?, expected);
    assert_eq!(looped.weights(&weights.mul_scalar(3.0)?)?.to_vec::<f64>()?[8], 3.0);
    for (src, dst) in [(0, 5), (-1, 0)] {
        assert_eq!(graph_of(&[[src, dst]], 5).unwrap_err().kind(), Kind::Index);
    }
    let empty = graph_of(&[], 3)?;
    assert_eq!(empty.with_self_loops()?.graph.symmetric_norm(None)?.to_vec::<f32>()?, [1.0; 3]);
    Ok(())
}

#[test]
fn a_gcn_is_a_product_with_a_dense_matrix() -> Result<()> {
    let graph = graph_of(&EDGES, NODES)?;
    let (x, weights) = (random(&[NODES, 3], 1)?, random(&[8], 2)?.add_scalar(2.0)?);
    for (weights, options) in [
        (None, &GcnOptions::default()),
        (Some(&weights), &GcnOptions::default()),
        (Some(&weights), &GcnOptions { add_self_loops: false, ..GcnOptions::default() }),
        (None, &GcnOptions { normalize: false, ..GcnOptions::default() }),
    ] {
        let layer = GcnConv::with_options(3, 2, options, &init())?;
        let given = weights.map_or(Ok(vec![1.0; 8]), Tensor::to_f64_vec)?;
        let edges = match options.add_self_loops && options.normalize {
            true => with_loops(&given, |v| if v == 1 { given[1] } else { 1.0 }),
            false => EDGES.iter().zip(&given).map(|(edge, w)| (edge.map(|v| v as usize), *w)).collect(),
        };
        let mut degrees = [0.0; NODES];
        edges.iter().for_each(|([_, to], w)| degrees[*to] += w);
        let root = |v: usize| {
            if !options.normalize {
                1.0
            } else if degrees[v] == 0.0 {
                0.0
            } else {
                degrees[v].powf(-0.5)
            }
        };
        let mut matrix = vec![0.0; NODES * NODES];
        edges.iter().for_each(|([from, to], w)| matrix[to * NODES + from] += root(*from) * w * root(*to));
        let matrix = Tensor::from_vec(matrix, (NODES, NODES), &cpu())?;
        let expected = matrix.matmul(&x.matmul(&layer.lin.weight.t()?)?)?.add(layer.bias.as_ref().unwrap())?;
        assert_close(&layer.forward(&x, &graph, weights)?, &expected.to_f64_vec()?);
    }
    Ok(())
}

/// The result of an attention with two heads, and of edges with two attributes, one edge after the other.
fn attended(layer: &GatConv, x: &Tensor, attributes: &[f64]) -> Result<Vec<f64>> {
    let h = x.matmul(&layer.lin.weight.t()?)?.to_f64_vec()?;
    let (lin_edge, att_edge) = {
        let edges = layer.of_edges.as_ref().unwrap();
        (&edges.lin_edge, &edges.att_edge)
    };
    let [src, dst, edge] = [&layer.att_src, &layer.att_dst, att_edge].map(|t| t.to_f64_vec().unwrap());
    let lin_edge = lin_edge.weight.to_f64_vec()?;
    let mean = |v: usize, k: usize| {
        let own = |edge: &&[i64; 2]| edge[1] as usize == v && edge[0] != edge[1];
        let all: Vec<f64> = (0..8).filter(|&e| own(&&EDGES[e])).map(|e| attributes[2 * e + k]).collect();
        if all.is_empty() { 0.0 } else { all.iter().sum::<f64>() / all.len() as f64 }
    };
    let of = |k: usize| with_loops(&(0..8).map(|e| attributes[2 * e + k]).collect::<Vec<_>>(), |v| mean(v, k));
    let (first, second) = (of(0), of(1));
    let mut y = vec![0.0; NODES * 6];
    for (v, head) in (0..NODES).flat_map(|v| (0..2).map(move |head| (v, head))) {
        let at = |node: usize, c: usize| h[node * 6 + head * 3 + c];
        let score = |e: usize| {
            let [from, to] = first[e].0;
            let of_edge =
                |c: usize| lin_edge[(head * 3 + c) * 2] * first[e].1 + lin_edge[(head * 3 + c) * 2 + 1] * second[e].1;
            let sum: f64 = (0..3)
                .map(|c| {
                    at(from, c) * src[head * 3 + c] + at(to, c) * dst[head * 3 + c] + of_edge(c) * edge[head * 3 + c]
                })
                .sum();
            if sum < 0.0 { 0.2 * sum } else { sum }
        };
        let own: Vec<usize> = (0..first.len()).filter(|&e| first[e].0[1] == v).collect();
        let total: f64 = own.iter().map(|&e| score(e).exp()).sum();
        for (&e, c) in own.iter().flat_map(|e| (0..3).map(move |c| (e, c))) {
            y[v * 6 + head * 3 + c] += score(e).exp() / total * at(first[e].0[0], c);
        }
    }
    Ok(y)
}

#[test]
fn a_gat_attends_to_neighbours() -> Result<()> {
    let graph = graph_of(&EDGES, NODES)?;
    let (x, attributes) = (random(&[NODES, 4], 1)?, random(&[8, 2], 2)?);
    let options = GatOptions { heads: 2, edge_dim: 2, ..GatOptions::default() };
    let layer = GatConv::with_options(4, 3, &options, &init())?;
    let expected = attended(&layer, &x, &attributes.to_f64_vec()?)?;
    assert_close(&layer.forward(&x, &graph, Some(&attributes))?, &expected);
    let mean = GatConv::with_options(4, 3, &GatOptions { combine: GatHeads::Mean, ..options }, &init())?;
    let halves: Vec<f64> =
        expected.chunks(6).flat_map(|row| (0..3).map(|c| (row[c] + row[c + 3]) / 2.0).collect::<Vec<_>>()).collect();
    assert_close(&mean.forward(&x, &graph, Some(&attributes))?, &halves);
    assert_eq!(layer.forward(&x, &graph, None).unwrap_err().kind(), Kind::Value);
    let names: Vec<String> = layer.named_parameters().into_iter().map(|(name, _)| name).collect();
    assert_eq!(names, ["lin.weight", "att_src", "att_dst", "lin_edge.weight", "att_edge", "bias"]);
    Ok(())
}

#[test]
fn sage_and_gin_reduce_neighbours() -> Result<()> {
    let (graph, x) = (graph_of(&EDGES, NODES)?, random(&[NODES, 3], 1)?);
    let values = x.to_f64_vec()?;
    let neighbours = |v: usize| EDGES.iter().filter(move |edge| edge[1] as usize == v).map(|edge| edge[0] as usize);
    let reduced = |aggr: IndexReduce| -> Result<Tensor> {
        let of = |v: usize, c: usize| {
            let all: Vec<f64> = neighbours(v).map(|u| values[u * 3 + c]).collect();
            match aggr {
                _ if all.is_empty() => 0.0,
                IndexReduce::Max => all.iter().fold(f64::NEG_INFINITY, |a, b| a.max(*b)),
                IndexReduce::Mean => all.iter().sum::<f64>() / all.len() as f64,
                IndexReduce::Sum => all.iter().sum(),
            }
        };
        Tensor::from_vec((0..NODES * 3).map(|i| of(i / 3, i % 3)).collect(), (NODES, 3), &cpu())
    };
    for aggr in [IndexReduce::Mean, IndexReduce::Max, IndexReduce::Sum] {
        let layer = SageConv::with_options(3, 2, &SageOptions { aggr, ..SageOptions::default() }, &init())?;
        let own = x.linear(&layer.lin_r.as_ref().unwrap().weight, None)?;
        let expected = reduced(aggr)?.linear(&layer.lin_l.weight, layer.lin_l.bias.as_ref())?.add(&own)?;
        assert_close(&layer.forward(&x, &graph)?, &expected.to_f64_vec()?);
    }
    let unit = SageConv::with_options(3, 2, &SageOptions { normalize: true, ..SageOptions::default() }, &init())?;
    assert_close(&unit.forward(&x, &graph)?.square()?.sum(1)?, &[1.0; NODES]);
    let gin = GinConv::with_trained_eps(Linear::new(3, 2, &init())?, 0.5, &init())?;
    let expected = reduced(IndexReduce::Sum)?.add(&x.mul_scalar(1.5)?)?.linear(&gin.nn.weight, gin.nn.bias.as_ref())?;
    assert_close(&gin.forward(&x, &graph)?, &expected.to_f64_vec()?);
    let count = |gin: &GinConv<Linear>| gin.parameters().len();
    assert_eq!((count(&gin), count(&GinConv::new(Linear::new(3, 2, &init())?, 0.0, &init())?)), (3, 2));
    Ok(())
}

#[test]
fn a_batch_has_the_results_of_its_graphs() -> Result<()> {
    let (first, second, third) = (graph_of(&EDGES, NODES)?, graph_of(&[[1, 0]], 2)?, graph_of(&[], 0)?);
    let batch = Graph::batch(&[&first, &third, &second])?;
    assert_eq!(batch.offsets(), [0, 5, 5, 7]);
    assert_eq!(batch.batch_index()?.to_vec::<i64>()?, [0, 0, 0, 0, 0, 2, 2]);
    let x = random(&[7, 3], 1)?;
    let layer = GatConv::new(3, 2, &init())?;
    let parts = [layer.forward(&x.narrow(0, 0, 5)?, &first, None)?, layer.forward(&x.narrow(0, 5, 2)?, &second, None)?];
    let y = layer.forward(&x, &batch, None)?;
    assert_close(&y, &[parts[0].to_f64_vec()?, parts[1].to_f64_vec()?].concat());
    let pools = [global_add_pool(&y, &batch)?, global_mean_pool(&y, &batch)?, global_max_pool(&y, &batch)?];
    let whole = |f: fn(&Tensor) -> Result<Tensor>| -> Result<Vec<f64>> {
        Ok([f(&parts[0])?.to_f64_vec()?, vec![0.0; 2], f(&parts[1])?.to_f64_vec()?].concat())
    };
    assert_close(&pools[0], &whole(|x| x.sum(0))?);
    assert_close(&pools[1], &whole(|x| x.mean(0))?);
    assert_close(&pools[2], &whole(|x| x.amax(0))?);
    assert_eq!(Graph::batch(&[]).unwrap_err().kind(), Kind::Value);
    Ok(())
}

#[test]
fn messages_of_a_closure_have_gradients() -> Result<()> {
    let (graph, weights) = (graph_of(&EDGES, NODES)?, random(&[8, 1], 2)?.require_grad()?);
    let (closure_x, x) = (random(&[NODES, 3], 1)?.require_grad()?, random(&[NODES, 3], 1)?.require_grad()?);
    let passing = MessagePassing::new(IndexReduce::Sum, |EdgeEnds { x_j, x_i, edge_attr }| {
        x_j.sub(x_i)?.mul(edge_attr.expect("attributes are given"))
    });
    let y = passing.forward(&closure_x, &graph, Some(&weights))?;
    y.square()?.sum(..)?.backward()?;
    // The same sum as a product of a matrix.
    let mut matrix = vec![0.0; NODES * NODES];
    for (edge, w) in EDGES.iter().zip(weights.to_f64_vec()?) {
        let [from, to] = edge.map(|v| v as usize);
        matrix[to * NODES + from] += w;
        matrix[to * NODES + to] -= w;
    }
    let expected = Tensor::from_vec(matrix, (NODES, NODES), &cpu())?.matmul(&x)?;
    expected.square()?.sum(..)?.backward()?;
    assert_close(&y, &expected.to_f64_vec()?);
    assert_close(&closure_x.grad().unwrap(), &x.grad().unwrap().to_f64_vec()?);
    assert_eq!(weights.grad().unwrap().dims(), [8, 1]);
    Ok(())
}

#[test]
fn a_gate_mixes_messages_with_features() -> Result<()> {
    let (graph, x) = (graph_of(&EDGES, NODES)?, random(&[NODES, 3], 1)?);
    let attributes = random(&[8, 2], 2)?;
    let layer = GatedMessagePassing::new(3, 2, &init())?;
    let [first, second] = &layer.message;
    let message = MessagePassing::new(IndexReduce::Sum, |EdgeEnds { x_j, x_i, edge_attr }| {
        let inputs = Tensor::concat(&[x_j, x_i, edge_attr.expect("attributes are given")], 1)?;
        inputs.linear(&first.weight, first.bias.as_ref())?.relu()?.linear(&second.weight, second.bias.as_ref())
    });
    let m = message.forward(&x, &graph, Some(&attributes))?;
    let z = x
        .linear(&layer.gate_x.weight, layer.gate_x.bias.as_ref())?
        .add(&m.linear(&layer.gate_m.weight, None)?)?
        .sigmoid()?;
    let expected = x.sub(&x.mul(&z)?)?.add(&m.mul(&z)?)?;
    assert_close(&layer.forward(&x, &graph, Some(&attributes))?, &expected.to_f64_vec()?);
    Ok(())
}
