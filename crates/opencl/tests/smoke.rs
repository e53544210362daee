//! First signs of life.
use isograd_core::{DType, Device, Tensor};
use isograd_opencl as _;

#[test]
fn adds() {
    for (name, list) in Device::list() {
        println!("{name}: {list:?}");
    }
    let device: Device = "opencl:0".parse().unwrap();
    let x = Tensor::from_vec((0..1000).map(|i| i as f32).collect::<Vec<_>>(), 1000, &device).unwrap();
    let y = x.add(&x).unwrap();
    assert_eq!(y.to_vec::<f32>().unwrap()[999], 1998.0);
    let z = x.reshape((10, 100)).unwrap().t().unwrap().copy().unwrap();
    assert_eq!(z.to_vec::<f32>().unwrap()[1], 100.0);
    for dtype in DType::ALL {
        println!("{dtype}");
        let y = x.cast(dtype).unwrap().cast(DType::F64).unwrap();
        println!("{:?}", &y.to_vec::<f64>().unwrap()[990..]);
    }
    println!("{:?}", device.memory());
}
