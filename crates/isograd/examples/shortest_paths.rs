//! A graph network with messages of its own: from the lengths of roads, the distance of the nearest stop. A round of the network is a step of
//! Bellman and Ford's method, of which it is told nothing. `cargo run --example shortest_paths -- --device opencl:0`.

mod options;
mod print;

use isograd::ops::IndexReduce;
use isograd::prelude::*;
use print::print;

const NODES: usize = 64;
const WIDTH: usize = 16;
/// Rounds of messages: how many edges a way may have.
const ROUNDS: usize = 2;

/// Houses in a ring with three roads more each: the graph, the lengths of its edges, the distance of the stop at each house, if it is used, and
/// that of the nearest stop.
struct Roads(Graph, Tensor, Tensor, Tensor);

impl Roads {
    fn draw(rng: &Rng, device: &Device) -> Result<Roads> {
        let from: Vec<i64> = (0..NODES as i64).collect::<Vec<_>>().repeat(4);
        let mut to = Tensor::randint(4 * NODES, 0, NODES as i64, device, rng)?.to_vec::<i64>()?;
        (0..NODES).for_each(|i| to[i] = (i as i64 + 1) % NODES as i64);
        let (src, dst) = ([&from[..], &to].concat(), [&to[..], &from].concat());
        let drawn = |n: usize, most| Tensor::rand(n, 0.0, most, DType::F32, device, rng)?.to_vec::<f32>();
        let (lengths, own) = (drawn(4 * NODES, 1.0)?.repeat(2), drawn(NODES, 3.0)?);
        let mut nearest = own.clone();
        for _ in 0..ROUNDS {
            let before = nearest.clone();
            for (length, (&from, &to)) in lengths.iter().zip(src.iter().zip(&dst)) {
                nearest[to as usize] = nearest[to as usize].min(before[from as usize] + length);
            }
        }
        let column = |values: &[f32]| Tensor::from_slice(values, (values.len(), 1), device);
        let [src, dst] = [src, dst].map(|nodes| Tensor::from_vec(nodes, 8 * NODES, device));
        Ok(Roads(Graph::from_edges(&src?, &dst?, NODES)?, column(&lengths)?, column(&own)?, column(&nearest)?))
    }
}

/// The layers of the input, of messages, of updates and of the output.
#[derive(Module)]
struct Network([Linear; 4]);

impl Network {
    fn forward(&self, Roads(graph, lengths, own, _): &Roads) -> Result<Tensor> {
        let [input, message, update, output] = &self.0;
        let messages = MessagePassing::new(IndexReduce::Max, |edges: EdgeEnds<'_>| {
            message.forward(&Tensor::concat(&[edges.x_j, edges.x_i, lengths], 1)?)?.relu()
        });
        let round = |x: Tensor, _| {
            let received = messages.forward(&x, graph, None)?;
            x.add(&update.forward(&Tensor::concat(&[&x, &received], 1)?)?.relu()?)
        };
        output.forward(&(0..ROUNDS).try_fold(input.forward(own)?, round)?)
    }
}

/// The deviation of the distances in roads that were not learnt, and the root of the mean square error of the network's.
pub fn train(device: &Device, steps: usize) -> Result<(f64, f64)> {
    let (init, rng) = (Init::new(device).seed(42), Rng::new(7));
    let linear = |input, output| Linear::new(input, output, &init);
    let (message, update) = (linear(2 * WIDTH + 1, WIDTH)?, linear(2 * WIDTH, WIDTH)?);
    let model = Network([linear(1, WIDTH)?, message, update, linear(WIDTH, 1)?]);
    let mut optimizer = AdamW::new(&model).lr(1e-2).clip_norm(1.0);
    for _ in 0..steps {
        let roads = Roads::draw(&rng, device)?;
        model.forward(&roads)?.mse_loss(&roads.3, Reduction::Mean)?.backward()?;
        optimizer.step()?;
    }
    let roads = Roads::draw(&rng, device)?;
    let error = no_grad(|| model.forward(&roads)?.mse_loss(&roads.3, Reduction::Mean))?;
    Ok((roads.3.var(.., 0.0)?.sqrt()?.item()?, error.sqrt()?.item()?))
}

fn main() -> Result<()> {
    let (deviation, error) = train(&options::device()?, 400)?;
    print(&format!("distances are wrong by {error:.3}; their deviation is {deviation:.3}"));
    Ok(())
}
