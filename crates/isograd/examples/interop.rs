//! Tensors from other libraries' data, and back: vectors, arrays, bytes, files of NumPy and of safetensors.
//! `cargo run --example interop -- --device opencl:0`.

mod options;
mod print;

use isograd::data::{HostTensor, npy};
use isograd::nn::Metadata;
use isograd::prelude::*;
use print::print;
use std::path::Path;

/// Rows of measurements, as another library has them.
const ROWS: [[f32; 3]; 2] = [[1.0, 2.0, 3.0], [4.0, 5.0, 6.0]];

/// Numbers in memory.
fn in_memory(device: &Device) -> Result<Tensor> {
    let x = Tensor::from_slice(ROWS.as_flattened(), (2, 3), device)?;
    assert_eq!(
        Tensor::from_vec(vec![1f32, 2.0, 3.0, 4.0, 5.0, 6.0], (2, 3), device)?.to_vec::<f32>()?,
        x.to_vec::<f32>()?
    );
    // All elements, a row as an array, and a single one.
    let all = Vec::<f32>::try_from(&x)?;
    let second: [f32; 3] = (&x.i((1,))?).try_into()?;
    let last: f32 = x.i((-1, -1))?.item()?;
    assert_eq!((&all[..3], second, last), (&ROWS[0][..], ROWS[1], 6.0));
    // Vectors of rows, for libraries that have those.
    let rows: Vec<Vec<f32>> = all.chunks(3).map(<[f32]>::to_vec).collect();
    assert_eq!(rows.concat(), all);
    // Elements of another type are an error, not a conversion.
    assert_eq!(Vec::<i64>::try_from(&x).unwrap_err().kind(), isograd::Kind::Dtype);
    // Bytes in the machine's order, as a buffer of a file or of another process has them.
    let bytes: Vec<u8> = all.iter().flat_map(|v| v.to_ne_bytes()).collect();
    assert!(Tensor::from_bytes(&bytes, (2, 3), DType::F32, device)?.allclose(&x, 0.0, 0.0)?);
    Ok(x)
}

/// An array of NumPy's: `numpy.load("rows.npy")`.
fn numpy(x: &Tensor, folder: &Path) -> Result<()> {
    let file = folder.join("rows.npy");
    npy::write(&file, &HostTensor::from_tensor(x)?)?;
    let again = npy::read(&file)?;
    assert_eq!((again.dims(), again.dtype()), (x.dims(), x.dtype()));
    assert!(again.to(x.device())?.allclose(x, 0.0, 0.0)?);
    Ok(())
}

/// Weights by names: `safetensors.torch.load_file("layer.safetensors")`.
fn safetensors(x: &Tensor, folder: &Path) -> Result<()> {
    let init = Init::new(x.device()).seed(42);
    let (layer, other) = (Linear::new(3, 4, &init)?, Linear::new(3, 4, &init)?);
    assert!(!layer.forward(x)?.allclose(&other.forward(x)?, 1e-3, 1e-3)?);
    let file = folder.join("layer.safetensors");
    save(&file, &layer.state_dict(), &Metadata::from([("format".into(), "pt".into())]))?;
    other.load_state_dict(&load(&file, x.device())?.tensors)?;
    assert!(layer.forward(x)?.allclose(&other.forward(x)?, 0.0, 0.0)?);
    Ok(())
}

/// Goes through all of these, with files in a folder.
pub fn run(device: &Device, folder: &Path) -> Result<()> {
    let x = in_memory(device)?;
    numpy(&x, folder)?;
    safetensors(&x, folder)
}

fn main() -> Result<()> {
    let device = options::device()?;
    let folder = std::env::temp_dir().join(format!("isograd-interop-{}", std::process::id()));
    std::fs::create_dir_all(&folder).map_err(Error::system)?;
    run(&device, &folder)?;
    std::fs::remove_dir_all(&folder).map_err(Error::system)?;
    print(&format!("{device}: all came back as it was"));
    Ok(())
}
