//! The functions, from pointwise ops, reductions, products and views alone; `benches/plain_ops.py` has the same under the same names.

use isograd::ops::conv::Conv;
use isograd::prelude::*;

/// From the inputs of a row to its results.
pub type Function = fn(&[Tensor]) -> Result<Vec<Tensor>>;

/// Functions of named inputs, the last of which may be the list of all others, and their table.
macro_rules! functions {
    ($(fn $name:ident($($x:ident),* $(; $others:ident)?) $body:block)*) => {
        // A function may take any inputs.
        $(#[allow(irrefutable_let_patterns, clippy::redundant_at_rest_pattern)]
        fn $name(inputs: &[Tensor]) -> Result<Vec<Tensor>> {
            let [$($x,)* $($others @ ..)?] = inputs else { panic!("{}: {} inputs", stringify!($name), inputs.len()) };
            Ok($body)
        })*

        /// Every function by its name.
        pub const FUNCTIONS: &[(&str, Function)] = &[$((stringify!($name), $name)),*];
    };
}

const LAST: isize = -1;

/// Mean 0 and variance 1 over `axes`.
fn standardised(x: &Tensor, axes: &[isize]) -> Result<Tensor> {
    let c = x - x.mean_keepdim(axes)?;
    Ok(&c * (c.square()?.mean_keepdim(axes)? + 1e-5).rsqrt()?)
}

fn layer_norm(x: &Tensor, w: &Tensor, b: &Tensor) -> Result<Tensor> {
    Ok(standardised(x, &[LAST])? * w + b)
}

/// Mean square 1 in each row.
fn rms_normed(x: &Tensor) -> Result<Tensor> {
    Ok(x * (x.square()?.mean_keepdim(LAST)? + 1e-6).rsqrt()?)
}

/// Length 1 in each row.
fn normalised(x: &Tensor) -> Result<Tensor> {
    Ok(x * (x.square()?.sum_keepdim(LAST)? + 1e-6).rsqrt()?)
}

fn gelu(x: &Tensor) -> Result<Tensor> {
    let inner = (x.pow_scalar(3)? * 0.044715 + x) * 0.7978845608;
    Ok((inner.tanh()? + 1.0) * x * 0.5)
}

fn silu(x: &Tensor) -> Result<Tensor> {
    Ok(x * x.sigmoid()?)
}

fn softmax(s: &Tensor) -> Result<Tensor> {
    let e = (s - s.detach().amax_keepdim(LAST)?).exp()?;
    Ok(&e / e.sum_keepdim(LAST)?)
}

fn log_sum_exp(x: &Tensor) -> Result<Tensor> {
    let m = x.detach().amax_keepdim(LAST)?;
    Ok((x - &m).exp()?.sum_keepdim(LAST)?.log()? + m)
}

/// Two halves of the last axis.
fn halves(x: &Tensor) -> Result<[Tensor; 2]> {
    let n = x.dims()[x.rank() - 1] / 2;
    Ok([x.narrow(LAST, 0, n)?, x.narrow(LAST, n, n)?])
}

/// `[B, T, C]` times `[C, 3 C]` as the heads of queries, keys and values, `[B, H, T, 64]`.
fn heads(x: &Tensor, qkv: &Tensor) -> Result<[Tensor; 3]> {
    let (b, t, w) = (x.dims()[0], x.dims()[1], x.dims()[2]);
    let all = x.matmul(qkv)?.reshape((b, t, 3, w / 64, 64))?.permute(&[2, 0, 3, 1, 4])?;
    Ok([all.select(0, 0)?, all.select(0, 1)?, all.select(0, 2)?])
}

/// Heads `[B, H, T, 64]` as `[B, T, C]`.
fn joined(y: &Tensor) -> Result<Tensor> {
    let (b, h, t, d) = (y.dims()[0], y.dims()[1], y.dims()[2], y.dims()[3]);
    y.permute(&[0, 2, 1, 3])?.reshape((b, t, h * d))
}

fn scores(q: &Tensor, k: &Tensor) -> Result<Tensor> {
    let d = q.dims()[q.rank() - 1] as f64;
    q.matmul(&k.transpose(-2, -1)?)?.mul_scalar(1.0 / d.sqrt())
}

/// A vector `[C]` beside images `[N, C, H, W]`.
fn channels(w: &Tensor) -> Result<Tensor> {
    w.reshape((w.numel(), 1, 1))
}

functions! {
    fn chain(x, g, b) {
        vec![(x * (x * 1.702).sigmoid()? * g + b).tanh()? * 0.5 + 1.0]
    }

    fn norm(x, w, b) {
        vec![layer_norm(x, w, b)?]
    }

    fn blocks(x, mask; weights) {
        let mut x = x.clone();
        for w in weights.chunks(8) {
            let [q, k, v] = heads(&layer_norm(&x, &w[0], &w[1])?, &w[2])?;
            let y = softmax(&(scores(&q, &k)? + mask))?.matmul(&v)?;
            x = x + joined(&y)?.matmul(&w[3])?;
            let h = layer_norm(&x, &w[4], &w[5])?.matmul(&w[6])?;
            x = x + gelu(&h)?.matmul(&w[7])?;
        }
        vec![x.square()?.mean(..)?]
    }

    fn pinn(x, w1, w2, w3) {
        // Second derivatives of a small network.
        let options = tape::BackwardOptions { create_graph: true, ..Default::default() };
        let u = x.matmul(w1)?.tanh()?.matmul(w2)?.tanh()?.matmul(w3)?;
        let du = tape::grad_with(&u.sum(..)?, &[x], &options)?.remove(0);
        let ddu = tape::grad_with(&du.sum(..)?, &[x], &options)?.remove(0);
        let loss = (ddu + u * 9.0).square()?.mean(..)?;
        tape::grad(&loss, &[w1, w2, w3])?
    }

    fn rms_norm(x) {
        vec![rms_normed(x)?]
    }

    fn rms_norm_residual(x, r, w) {
        // As in Llama: the norm is in f32.
        let h = x + r;
        vec![rms_normed(&h.cast(DType::F32)?)?.cast(x.dtype())? * w, h]
    }

    fn batch_norm(x, w, b) {
        vec![standardised(x, &[0, 2, 3])? * channels(w)? + channels(b)?]
    }

    fn geglu(h) {
        let [gate, up] = halves(h)?;
        vec![gelu(&gate)? * up]
    }

    fn swiglu(x, w, down) {
        let [gate, up] = halves(&x.matmul(w)?)?;
        vec![(silu(&gate)? * up).matmul(down)?]
    }

    fn gated_mix(x, r, w, u, b) {
        let gate = (x * w + r * u + b).sigmoid()?;
        vec![&gate * x + (1.0 - &gate) * r]
    }

    fn rotary(x, cos, sin) {
        let [a, b] = halves(x)?;
        vec![Tensor::concat(&[&(&a * cos - &b * sin), &(&b * cos + &a * sin)], LAST)?]
    }

    fn rotary_pairs(x, cos, sin) {
        let n = x.dims()[3];
        let (a, b) = (x.slice(LAST, 0, n, 2)?, x.slice(LAST, 1, n, 2)?);
        vec![Tensor::stack(&[&(&a * cos - &b * sin), &(&b * cos + &a * sin)], LAST)?.flatten(-2, -1)?]
    }

    fn softcap_softmax(s) {
        vec![softmax(&((s / 30.0).tanh()? * 30.0))?]
    }

    fn attention(q, k, v, later) {
        vec![softmax(&scores(q, k)?.masked_fill(later, f64::NEG_INFINITY)?)?.matmul(v)?]
    }

    fn qk_norm_block(x, qkv, o, up, down) {
        let [q, k, v] = heads(&rms_normed(x)?, qkv)?;
        let y = softmax(&scores(&rms_normed(&q)?, &rms_normed(&k)?)?)?.matmul(&v)?;
        let x = x + joined(&y)?.matmul(o)?;
        let h = rms_normed(&x)?.matmul(up)?.relu()?.square()?;
        vec![x + h.matmul(down)?]
    }

    fn convnext(x, k, kb, w, b, up, ub, down, db, scale) {
        let depthwise = Conv { padding: Padding::Each([3; 2]), groups: k.dims()[0], ..Conv::default() };
        let h = x.conv2d(k, Some(kb), &depthwise)?.permute(&[0, 2, 3, 1])?;
        let h = gelu(&(layer_norm(&h, w, b)?.matmul(up)? + ub))?.matmul(down)? + db;
        vec![x + (h * scale).permute(&[0, 3, 1, 2])?]
    }

    fn diffusion_block(x, w, b, t) {
        // 32 groups of channels; t has a scale and a shift of each channel.
        let (n, c) = (x.dims()[0], x.dims()[1]);
        let groups = x.reshape((n, 32, x.numel() / (n * 32)))?;
        let h = standardised(&groups, &[LAST])?.reshape(x.shape())? * channels(w)? + channels(b)?;
        let [scale, shift] = halves(t)?;
        vec![silu(&(h * (scale.reshape((n, c, 1, 1))? + 1.0) + shift.reshape((n, c, 1, 1))?))?]
    }

    fn squeeze_excite(x, w1, b1, w2, b2) {
        let h = (x.mean([2isize, 3])?.matmul(w1)? + b1).relu()?;
        let s = (h.matmul(w2)? + b2).sigmoid()?;
        vec![x * s.reshape((s.dims()[0], s.dims()[1], 1, 1))?]
    }

    fn lstm_cell(gates, b, c) {
        let n = c.dims()[1];
        let all = gates + b;
        let gate = |i: usize| all.narrow(1, i * n, n);
        let c = gate(1)?.sigmoid()? * c + gate(0)?.sigmoid()? * gate(2)?.tanh()?;
        vec![gate(3)?.sigmoid()? * c.tanh()?, c]
    }

    fn masked_mean(x, mask) {
        let total = (x * mask.unsqueeze(LAST)?).sum(1isize)?;
        vec![total / mask.sum_keepdim(1isize)?.clamp(Some(1.0.into()), None)?]
    }

    fn pairwise_small(a, b) {
        let d = a.unsqueeze(1)? - b.unsqueeze(0)?;
        vec![(d.square()?.sum(LAST)? + 1e-6).sqrt()?]
    }

    fn pairwise(a, b) {
        let squares = a.square()?.sum_keepdim(LAST)? + b.square()?.sum(LAST)?;
        vec![((squares - a.matmul(&b.t()?)? * 2.0).relu()? + 1e-6).sqrt()?]
    }

    fn focal_loss(x, t) {
        // gamma = 2, alpha = 1/4; `wrong` is the probability of the other class.
        let (x, t) = (&x.cast(DType::F32)?, &t.cast(DType::F32)?);
        let p = x.sigmoid()?;
        let entropy = x.relu()? - x * t + (-x.abs()?).exp()?.log1p()?;
        let wrong = &p + t - &p * t * 2.0;
        vec![((0.75 - t * 0.5) * wrong.square()? * entropy).mean(..)?]
    }

    fn label_smoothing(x, y) {
        let x = &x.cast(DType::F32)?;
        let of_class = x.gather(1, &y.unsqueeze(1)?)?;
        vec![(log_sum_exp(x)? - of_class * 0.9 - x.mean_keepdim(LAST)? * 0.1).mean(..)?]
    }

    fn contrastive(a, b, t) {
        // InfoNCE: row i of a belongs to row i of b; t is the logarithm of the inverse temperature.
        let s = normalised(a)?.matmul(&normalised(b)?.t()?)? * t.exp()?;
        let s = s.cast(DType::F32)?;
        vec![(log_sum_exp(&s)?.squeeze(LAST)? - s.diagonal(0)?).mean(..)?]
    }

    fn huber(x, y) {
        let d = (x - y).cast(DType::F32)?;
        let size = d.abs()?;
        vec![size.lt_scalar(1.0)?.where_cond(&(d.square()? * 0.5), &(&size - 0.5))?.mean(..)?]
    }

    fn kl_divergence(x, t) {
        let (x, t) = (&x.cast(DType::F32)?, &t.cast(DType::F32)?);
        let (of_x, of_t) = (x - log_sum_exp(x)?, t - log_sum_exp(t)?);
        vec![(of_t.exp()? * (of_t - of_x)).sum(LAST)?.mean(..)?]
    }

    fn lion(; tensors) {
        for set in tensors.chunks(3) {
            let [p, g, m] = set else { panic!("sets of p, g, m") };
            p.copy_(&(p * (1.0 - 0.01 * 0.1) - (m * 0.9 + g * 0.1).sign()? * 0.01))?;
            m.copy_(&(m * 0.99 + g * 0.01))?;
        }
        vec![]
    }

    fn adam(steps; tensors) {
        steps.copy_(&(steps + 1.0))?;
        let (c1, c2) = (1.0 - steps.rpow_scalar(0.9)?, 1.0 - steps.rpow_scalar(0.999)?);
        for set in tensors.chunks(4) {
            let [p, g, m, v] = set else { panic!("sets of p, g, m, v") };
            m.copy_(&(m * 0.9 + g * 0.1))?;
            v.copy_(&(v * 0.999 + g.square()? * 0.001))?;
            let step = m / &c1 / ((v / &c2).sqrt()? + 1e-8);
            p.copy_(&(p * (1.0 - 0.01 * 0.01) - step * 0.01))?;
        }
        vec![]
    }
}
