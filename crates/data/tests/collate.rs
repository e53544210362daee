//! Batches: the structure, shapes and dtypes of each kind of sample.

use isograd_core::{DType, Device, Error, Kind, Result, Tensor, Tensors};
use isograd_cpu as _;
use isograd_data::{Collate, Context, Dataset, HostTensor, Items, Loader, Padded};

fn batch<T: Collate>(items: Vec<T>) -> Result<T::Batch> {
    T::collate(items)?.to(&Device::cpu()?)
}

#[track_caller]
fn assert_tensor(t: &Tensor, dtype: DType, dims: &[usize], values: &[f64]) {
    assert_eq!((t.dtype(), t.dims(), t.to_f64_vec().unwrap()), (dtype, dims, values.to_vec()));
}

/// A signal with what is said about it.
#[derive(Clone, Collate)]
struct Record {
    signal: HostTensor,
    /// Token ids.
    words: Vec<i64>,
    r#type: u8,
    pair: (f32, bool),
}

fn record(words: &[i64]) -> Record {
    let n = words.len() as f32;
    let signal = HostTensor::new(&[n, -n], [1, 2]).unwrap();
    Record { signal, words: words.to_vec(), r#type: words.len() as u8, pair: (0.5 * n, n > 1.0) }
}

#[test]
fn a_derived_batch_has_the_fields_of_the_sample() {
    let RecordBatch { signal, words, r#type, pair } = batch(vec![record(&[5, 6]), record(&[]), record(&[7])]).unwrap();
    assert_tensor(&signal, DType::F32, &[3, 1, 2], &[2.0, -2.0, 0.0, 0.0, 1.0, -1.0]);
    assert_tensor(&words.values, DType::I64, &[3, 2], &[5.0, 6.0, 0.0, 0.0, 7.0, 0.0]);
    assert_tensor(&words.lengths, DType::I64, &[3], &[2.0, 0.0, 1.0]);
    assert_tensor(&words.mask().unwrap(), DType::Bool, &[3, 2], &[1.0, 1.0, 0.0, 0.0, 1.0, 0.0]);
    assert_tensor(&r#type, DType::U8, &[3], &[2.0, 0.0, 1.0]);
    assert_tensor(&pair.0, DType::F32, &[3], &[1.0, 0.0, 0.5]);
    assert_tensor(&pair.1, DType::Bool, &[3], &[1.0, 0.0, 0.0]);
}

#[test]
fn a_derived_batch_is_a_structure_of_tensors() {
    let mut dims = Vec::new();
    let copied = batch(vec![record(&[5, 6])]).unwrap().map(&mut |t| {
        dims.push(t.dims().to_vec());
        t.copy()
    });
    assert_eq!(dims, [vec![1, 1, 2], vec![1, 2], vec![1], vec![1], vec![1], vec![1]]);
    assert_tensor(&copied.unwrap().words.values, DType::I64, &[1, 2], &[5.0, 6.0]);
}

#[test]
fn arrays_and_nested_tuples_keep_their_dtypes() {
    let ((a,), b, c) = batch(vec![((1i32,), [1.0f64, 2.0], true), ((3,), [4.0, 5.0], false)]).unwrap();
    assert_tensor(&a, DType::I32, &[2], &[1.0, 3.0]);
    assert_tensor(&b, DType::F64, &[2, 2], &[1.0, 2.0, 4.0, 5.0]);
    assert_tensor(&c, DType::Bool, &[2], &[1.0, 0.0]);
}

#[test]
fn sequences_without_elements_make_an_empty_batch() {
    let padded = batch(vec![vec![1i64, 2], vec![3]]).unwrap().padded_with(-100).unwrap();
    assert_eq!(padded.values.to_vec::<i64>().unwrap(), [1, 2, 3, -100]);
    let Padded { values, lengths } = batch(vec![Vec::<f32>::new(), Vec::new()]).unwrap();
    assert_eq!((values.dims(), lengths.dims()), (&[2, 0][..], &[2][..]));
    assert_eq!(batch(vec![[0i64; 0]; 3]).unwrap().dims(), [3, 0]);
}

#[test]
fn samples_of_different_shapes_are_an_error_of_the_epoch() {
    let data = Items(vec![1usize, 1, 2]).map(|n, _| Ok(HostTensor::vector(&vec![0i64; n])));
    let loader = Loader::new(data, 3).unwrap().to(&Device::cpu().unwrap());
    let items: Vec<Result<Tensor>> = loader.epoch(0).collect();
    let [Err(error)] = &items[..] else { panic!("{items:?}") };
    assert_eq!(error.to_string(), "stack: Shape: sample 2 has shape [2], expected [1] as the first");
}

/// A structure that no rule foresees: the sum of the samples.
struct Summed(f32);

impl Collate for Summed {
    type Batch = Tensor;

    fn collate(items: Vec<Summed>) -> Result<isograd_data::Staged<Tensor>> {
        let sum: f32 = items.iter().map(|item| item.0).sum();
        if sum.is_nan() {
            return Err(Error::value("summed", "no number"));
        }
        Ok(isograd_data::Staged::new(move |device| Tensor::scalar(sum, device)))
    }
}

#[test]
fn a_type_can_collate_itself() {
    let data = Items(vec![1.0f32, 2.0, 4.0]).map(|x, _: &Context| Ok(Summed(x)));
    let whole = data.to_batch(&Device::cpu().unwrap()).unwrap();
    assert_eq!(whole.item::<f64>().unwrap(), 7.0);
    let nan = Items(vec![f32::NAN]).map(|x, _| Ok(Summed(x)));
    assert_eq!(nan.to_batch(&Device::cpu().unwrap()).unwrap_err().kind(), Kind::Value);
}
