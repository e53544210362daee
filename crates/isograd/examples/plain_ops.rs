//! Times of captured and plain steps that are written in plain ops, as JSON lines: `plain_ops DEVICE [small] [explain]
//! [only=NAME]`, with the program of each, or only of those whose name contains a word; each is run once with `once`, for a profiler. `benches/plain_ops.py` times the same steps in PyTorch.
use isograd::prelude::*;
use std::time::Instant;

fn time(device: &Device, name: &str, reps: usize, mut step: impl FnMut() -> Result<Vec<Tensor>>) -> Result<()> {
    let words: Vec<String> = std::env::args().collect();
    if words.iter().filter_map(|word| word.strip_prefix("only=")).any(|part| !name.contains(part)) {
        return Ok(());
    }
    if words.iter().any(|word| word == "once") {
        let mut captured = device.capture(|_: ()| step());
        return (0..2).try_for_each(|_| captured.run(()).map(drop)).and_then(|()| device.synchronize());
    }
    for _ in 0..3 {
        step()?;
    }
    device.synchronize()?;
    let mut eager = f64::MAX;
    for _ in 0..3 {
        let t = Instant::now();
        for _ in 0..reps {
            step()?;
        }
        device.synchronize()?;
        eager = eager.min(t.elapsed().as_secs_f64() / reps as f64);
    }
    let mut captured = device.capture(|_: ()| step());
    for _ in 0..4 {
        captured.run(())?;
    }
    device.synchronize()?;
    let mut best = f64::MAX;
    for _ in 0..3 {
        let t = Instant::now();
        for _ in 0..reps {
            captured.run(())?;
        }
        device.synchronize()?;
        best = best.min(t.elapsed().as_secs_f64() / reps as f64);
    }
    println!(
        r#"{{"name": "{name}", "eager_ms": {:.4}, "captured_ms": {:.4}, "recorded": {}}}"#,
        eager * 1e3,
        best * 1e3,
        captured.is_recorded()
    );
    if words.iter().any(|word| word == "explain") {
        println!("{}", captured.explain().unwrap_or_default());
    }
    Ok(())
}

fn grads(loss: &Tensor, leaves: &[&Tensor]) -> Result<Vec<Tensor>> {
    tape::grad(loss, leaves)
}

fn chain(x: &Tensor, g: &Tensor, b: &Tensor) -> Result<Tensor> {
    let s = x.mul_scalar(1.702)?.sigmoid()?;
    x.mul(&s)?.mul(g)?.add(b)?.tanh()?.mul_scalar(0.5)?.add_scalar(1.0)
}

fn my_norm(x: &Tensor, w: &Tensor, b: &Tensor) -> Result<Tensor> {
    let m = x.keepdim(-1isize, |t, a| t.mean(a))?;
    let c = x.sub(&m)?;
    let v = c.square()?.keepdim(-1isize, |t, a| t.mean(a))?;
    c.mul(&v.add_scalar(1e-5)?.rsqrt()?)?.mul(w)?.add(b)
}

fn my_gelu(x: &Tensor) -> Result<Tensor> {
    let inner = x.pow_scalar(3)?.mul_scalar(0.044715)?.add(x)?.mul_scalar(0.7978845608)?;
    inner.tanh()?.add_scalar(1.0)?.mul(x)?.mul_scalar(0.5)
}

struct Block {
    n1w: Tensor,
    n1b: Tensor,
    qkv: Tensor,
    o: Tensor,
    n2w: Tensor,
    n2b: Tensor,
    up: Tensor,
    down: Tensor,
}

fn block(x: &Tensor, p: &Block, mask: &Tensor, heads: usize) -> Result<Tensor> {
    let (b, t, w) = (x.shape()[0], x.shape()[1], x.shape()[2]);
    let h = my_norm(x, &p.n1w, &p.n1b)?;
    let qkv = h.matmul(&p.qkv)?.reshape((b, t, 3, heads, w / heads))?.permute(&[2, 0, 3, 1, 4])?;
    let (q, k, v) = (qkv.select(0, 0)?, qkv.select(0, 1)?, qkv.select(0, 2)?);
    let s = q.matmul(&k.transpose(-2, -1)?)?.mul_scalar(1.0 / ((w / heads) as f64).sqrt())?.add(mask)?;
    let m = s.detach().amax_keepdim(-1isize)?;
    let e = s.sub(&m)?.exp()?;
    let a = e.div(&e.sum_keepdim(-1isize)?)?;
    let y = a.matmul(&v)?.permute(&[0, 2, 1, 3])?.reshape((b, t, w))?.matmul(&p.o)?;
    let x = x.add(&y)?;
    let h = my_norm(&x, &p.n2w, &p.n2b)?.matmul(&p.up)?;
    x.add(&my_gelu(&h)?.matmul(&p.down)?)
}

fn main() -> Result<()> {
    let name = std::env::args().nth(1).unwrap_or("cpu".into());
    let small = std::env::args().any(|word| word == "small");
    let device: Device = name.parse()?;
    let r = |shape: &[usize], dt: DType| {
        Tensor::randn(shape, 0.0, 1.0, DType::F32, &device, &Rng::new(7))
            .and_then(|t| t.mul_scalar(0.5))
            .and_then(|t| t.cast(dt))
    };
    let (rows, cols) = if small { (256, 512) } else { (8192, 4096) };
    for (dt, tag) in [(DType::F32, "f32"), (DType::BF16, "bf16")] {
        let x = r(&[rows, cols], dt)?.require_grad()?;
        let g = r(&[cols], dt)?.require_grad()?;
        let b = r(&[cols], dt)?.require_grad()?;
        time(&device, &format!("chain fwd {tag}"), 20, || Ok(vec![no_grad(|| chain(&x, &g, &b))?]))?;
        time(&device, &format!("chain fwd+bwd {tag}"), 20, || grads(&chain(&x, &g, &b)?.sum(..)?, &[&x, &g, &b]))?;
        time(&device, &format!("norm fwd {tag}"), 20, || Ok(vec![no_grad(|| my_norm(&x, &g, &b))?]))?;
        time(&device, &format!("norm fwd+bwd {tag}"), 20, || grads(&my_norm(&x, &g, &b)?.sum(..)?, &[&x, &g, &b]))?;
        let (bs, t, w, heads, layers) = if small { (2, 32, 64, 4, 2) } else { (8, 512, 768, 12, 4) };
        let mut mask = vec![0f32; t * t];
        for i in 0..t {
            for j in i + 1..t {
                mask[i * t + j] = -1e4;
            }
        }
        let mask = Tensor::from_vec(mask, (t, t), &device)?.cast(dt)?;
        let p = |shape: &[usize]| {
            Tensor::randn(shape, 0.0, 1.0, DType::F32, &device, &Rng::new(3))
                .and_then(|t| t.mul_scalar(0.02))
                .and_then(|t| t.cast(dt))
                .and_then(|t| t.require_grad())
        };
        let blocks: Vec<Block> = (0..layers)
            .map(|_| {
                Ok(Block {
                    n1w: p(&[w])?,
                    n1b: p(&[w])?,
                    qkv: p(&[w, 3 * w])?,
                    o: p(&[w, w])?,
                    n2w: p(&[w])?,
                    n2b: p(&[w])?,
                    up: p(&[w, 4 * w])?,
                    down: p(&[4 * w, w])?,
                })
            })
            .collect::<Result<_>>()?;
        let x = r(&[bs, t, w], dt)?;
        let leaves: Vec<&Tensor> =
            blocks.iter().flat_map(|b| [&b.n1w, &b.n1b, &b.qkv, &b.o, &b.n2w, &b.n2b, &b.up, &b.down]).collect();
        time(&device, &format!("blocks fwd+bwd {tag}"), 10, || {
            let mut h = x.clone();
            for b in &blocks {
                h = block(&h, b, &mask, heads)?;
            }
            grads(&h.square()?.mean(..)?, &leaves)
        })?;
    }
    // Physics-informed: second derivatives of a small network.
    let w1 = r(&[1, 64], DType::F32)?.require_grad()?;
    let w2 = r(&[64, 64], DType::F32)?.require_grad()?;
    let w3 = r(&[64, 1], DType::F32)?.require_grad()?;
    let x = r(&[1024, 1], DType::F32)?.require_grad()?;
    let options = tape::BackwardOptions { create_graph: true, ..Default::default() };
    time(&device, "pinn f32", 50, || {
        let u = x.matmul(&w1)?.tanh()?.matmul(&w2)?.tanh()?.matmul(&w3)?;
        let du = tape::grad_with(&u.sum(..)?, &[&x], &options)?.remove(0);
        let ddu = tape::grad_with(&du.sum(..)?, &[&x], &options)?.remove(0);
        let loss = ddu.add(&u.mul_scalar(9.0)?)?.square()?.mean(..)?;
        grads(&loss, &[&w1, &w2, &w3])
    })?;
    Ok(())
}
