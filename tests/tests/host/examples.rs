use isograd::ops::loss::Reduction;
use isograd::ops::{Order, Pad};
use isograd::prelude::{DType, Device, Result, Rng, Tensor};
#[test]
fn examples() -> Result<()> {
    let device = &Device::cpu()?;
    {
        let x = Tensor::zeros((2, 3), DType::F32, device)?;
        assert_eq!(x.to_vec::<f32>()?, [0.0; 6]);
    }
    {
        let x = Tensor::full((2, 2), 7, DType::I64, device)?;
        assert_eq!(x.to_vec::<i64>()?, [7; 4]);
    }
    {
        assert_eq!(Tensor::arange(4, device)?.to_vec::<i64>()?, [0, 1, 2, 3]);
    }
    {
        let x = Tensor::linspace(0.0, 1.0, 5, DType::F32, device)?;
        assert_eq!(x.to_vec::<f32>()?, [0.0, 0.25, 0.5, 0.75, 1.0]);
    }
    {
        assert_eq!(Tensor::eye(2, DType::F32, device)?.to_vec::<f32>()?, [1.0, 0.0, 0.0, 1.0]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 4.0], (2, 2), device)?;
        assert_eq!((x.dims(), x.dtype()), (&[2, 2][..], DType::F32));
    }
    {
        let x = Tensor::arange(3, device)?;
        assert_eq!(x.to_vec::<i64>()?, [0, 1, 2]);
        assert!(x.to_vec::<f32>().is_err());
    }
    {
        let mean = Tensor::full((), 2.5, DType::F32, device)?;
        assert_eq!(mean.item::<f64>()?, 2.5);
    }
    {
        let x = Tensor::full(2, 1.0, DType::F32, device)?;
        assert!(x.allclose(&x.add_scalar(1e-6)?, 1e-5, 0.0)?);
    }
    {
        assert_eq!(Tensor::arange(6, device)?.reshape((2, 3))?.dims(), [2, 3]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!(x.transpose(0, 1)?.to_vec::<i64>()?, [0, 3, 1, 4, 2, 5]);
    }
    {
        let images = Tensor::zeros((8, 32, 24, 3), DType::F32, device)?;
        assert_eq!(images.permute(&[0, 3, 1, 2])?.dims(), [8, 3, 32, 24]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!(x.narrow(1, 1, 2)?.to_vec::<i64>()?, [1, 2, 4, 5]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!(x.select(1, -1)?.to_vec::<i64>()?, [2, 5]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!((x.unsqueeze(0)?.dims(), x.unsqueeze(-1)?.dims()), (&[1, 2, 3][..], &[2, 3, 1][..]));
    }
    {
        assert_eq!(Tensor::arange(3, device)?.reshape((3, 1))?.squeeze(1)?.dims(), [3]);
    }
    {
        let x = Tensor::zeros((2, 3, 4), DType::F32, device)?;
        assert_eq!(x.flatten(1, -1)?.dims(), [2, 12]);
    }
    {
        let x = Tensor::arange(3, device)?.broadcast_to((2, 3))?;
        assert_eq!(x.to_vec::<i64>()?, [0, 1, 2, 0, 1, 2]);
    }
    {
        let x = Tensor::arange(2, device)?;
        assert_eq!(Tensor::concat(&[&x, &x], 0)?.to_vec::<i64>()?, [0, 1, 0, 1]);
    }
    {
        let x = Tensor::arange(2, device)?;
        assert_eq!(Tensor::stack(&[&x, &x], 1)?.to_vec::<i64>()?, [0, 0, 1, 1]);
    }
    {
        let parts = Tensor::arange(5, device)?.split(2, 0)?;
        assert_eq!(parts.iter().map(Tensor::numel).collect::<Vec<_>>(), [2, 2, 1]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!(x.flip(&[1])?.to_vec::<i64>()?, [2, 1, 0, 5, 4, 3]);
    }
    {
        assert_eq!(Tensor::arange(4, device)?.roll(1, 0)?.to_vec::<i64>()?, [3, 0, 1, 2]);
    }
    {
        assert_eq!(Tensor::arange(2, device)?.repeat(&[2])?.to_vec::<i64>()?, [0, 1, 0, 1]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        let even = x.remainder(&x.full_like(2)?)?.eq_scalar(0)?;
        assert_eq!(x.masked_fill(&even, -1)?.to_vec::<i64>()?, [-1, 1, -1, 3, -1, 5]);
    }
    {
        let classes = Tensor::from_vec(vec![2i64, 0], 2, device)?;
        assert_eq!(classes.one_hot(3)?.to_vec::<i64>()?, [0, 0, 1, 1, 0, 0]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        assert_eq!(x.matmul(&x)?.to_vec::<f32>()?, [7.0, 14.0, 21.0, 42.0]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!(x.sum(..)?.item::<i64>()?, 15);
        assert_eq!((x.sum(0)?.to_vec::<i64>()?, x.sum([0, 1])?.rank()), (vec![3, 5, 7], 0));
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        assert_eq!(x.mean(-1)?.to_vec::<f32>()?, [1.5, 4.5]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        assert_eq!(x.var(-1, 1.0)?.to_vec::<f32>()?, [0.5, 4.5]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!(x.amax(1)?.to_vec::<i64>()?, [2, 5]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        assert_eq!(x.argmax(-1)?.to_vec::<i64>()?, [1, 1]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        let (values, positions) = x.max(0)?;
        assert_eq!((values.to_vec::<f32>()?, positions.to_vec::<i64>()?), (vec![3.0, 6.0], vec![1, 1]));
    }
    {
        assert_eq!(Tensor::arange(4, device)?.cumsum(0)?.to_vec::<i64>()?, [0, 1, 3, 6]);
    }
    {
        let scores = Tensor::zeros((3, 4), DType::F32, device)?;
        assert_eq!(scores.softmax(-1)?.to_vec::<f32>()?, [0.25; 12]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 3.0], (1, 2), device)?;
        assert_eq!(x.layer_norm(1, None, None, 0.0)?.to_vec::<f32>()?, [-1.0, 1.0]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        let at = Tensor::from_vec(vec![1i64, 0], (2, 1), device)?;
        assert_eq!(x.gather(1, &at)?.to_vec::<f32>()?, [2.0, 3.0]);
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        let rows = Tensor::from_vec(vec![1i64, 1, 0], 3, device)?;
        assert_eq!(x.index_select(0, &rows)?.to_vec::<i64>()?, [3, 4, 5, 3, 4, 5, 0, 1, 2]);
    }
    {
        let at = Tensor::from_vec(vec![0i64, 2, 0], 3, device)?;
        let sums = Tensor::zeros(3, DType::F32, device)?.scatter_add(0, &at, &Tensor::ones(3, DType::F32, device)?)?;
        assert_eq!(sums.to_vec::<f32>()?, [2.0, 0.0, 1.0]);
    }
    {
        let (values, positions) = Tensor::from_vec(vec![3i64, 1, 2], 3, device)?.sort(0, Order::Ascending)?;
        assert_eq!((values.to_vec::<i64>()?, positions.to_vec::<i64>()?), (vec![1, 2, 3], vec![1, 2, 0]));
    }
    {
        let (values, positions) = Tensor::from_vec(vec![3i64, 1, 2], 3, device)?.topk(2, 0, Order::Descending)?;
        assert_eq!((values.to_vec::<i64>()?, positions.to_vec::<i64>()?), (vec![3, 2], vec![0, 2]));
    }
    {
        let x = Tensor::arange(6, device)?.reshape((2, 3))?;
        assert_eq!(x.masked_select(&x.gt_scalar(3)?)?.to_vec::<i64>()?, [4, 5]);
    }
    {
        let (a, b) = (Tensor::arange(4, device)?, Tensor::zeros(4, DType::I64, device)?);
        assert_eq!(a.gt_scalar(1)?.where_cond(&a, &b)?.to_vec::<i64>()?, [0, 0, 2, 3]);
    }
    {
        let x = Tensor::arange(4, device)?;
        assert_eq!(x.clamp(Some(1.into()), None)?.to_vec::<i64>()?, [1, 1, 2, 3]);
    }
    {
        assert_eq!(Tensor::arange(2, device)?.cast(DType::F32)?.to_vec::<f32>()?, [0.0, 1.0]);
    }
    {
        let (logits, classes) =
            (Tensor::zeros((2, 4), DType::F32, device)?, Tensor::from_vec(vec![3i64, 0], 2, device)?);
        assert!((logits.cross_entropy(&classes)?.item::<f64>()? - 4f64.ln()).abs() < 1e-6);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        assert_eq!(x.mse_loss(&x.add_scalar(2.0)?, Reduction::Mean)?.item::<f64>()?, 4.0);
    }
    {
        let w = Tensor::full(2, 3.0, DType::F32, device)?.require_grad()?;
        w.square()?.sum(..)?.backward()?;
        assert_eq!(w.grad().unwrap().to_vec::<f32>()?, [6.0, 6.0]);
    }
    {
        let x = Tensor::rand((2, 3), -1.0, 1.0, DType::F32, device, &Rng::new(42))?;
        assert!(x.to_vec::<f32>()?.iter().all(|v| (-1.0..1.0).contains(v)));
    }
    {
        let dice = Tensor::randint(10, 1, 7, device, &Rng::new(42))?;
        assert!(dice.to_vec::<i64>()?.iter().all(|v| (1..7).contains(v)));
    }
    {
        let x = Tensor::ones(8, DType::F32, device)?.dropout(0.5, &Rng::new(42))?;
        assert!(x.to_vec::<f32>()?.iter().all(|v| [0.0, 2.0].contains(v)));
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        assert_eq!(x.pad(&[[1, 0]], Pad::ZEROS)?.to_vec::<f32>()?, [0.0, 1.0, 2.0, 0.0, 3.0, 6.0]);
    }
    {
        let x = Tensor::from_vec(vec![1.0f32, 2.0, 3.0, 6.0], (2, 2), device)?;
        assert_eq!(x.tril(0)?.to_vec::<f32>()?, [1.0, 0.0, 3.0, 6.0]);
    }
    Ok(())
}
