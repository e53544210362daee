//! GGUF files, which `tests/golden/gguf_files.py` writes with the package gguf.

use crate::common::cpu;
use isograd_core::quantized::{BlockFormat, QuantizedWeight};
use isograd_core::{DType, Error, Kind, Rng, Tensor};
use isograd_nn::gguf::{Array, Gguf, TensorType, Value, save, save_quantized};
use isograd_nn::{Metadata, StateDict, load, load_checked, load_part, shapes};
use std::collections::BTreeMap;
use std::fs;
use std::path::{Path, PathBuf};

fn at(name: &str) -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/golden/gguf_files").join(name)
}

/// The tensors that the package `gguf` reads from files, or packs, by the name behind `part`.
fn expected(part: &str) -> StateDict {
    let all = load(at("expected.safetensors"), &cpu()).unwrap().tensors;
    all.into_iter().filter_map(|(name, t)| Some((name.strip_prefix(part)?.to_string(), t))).collect()
}

/// The bits of floats, with one NaN for all.
fn bits(t: &Tensor) -> Vec<u32> {
    t.to_vec::<f32>().unwrap().into_iter().map(|x| if x.is_nan() { f32::NAN } else { x }.to_bits()).collect()
}

#[test]
fn numbers_have_the_bits_of_the_package() {
    let file = Gguf::open(at("types.gguf")).unwrap();
    let expected = expected("numbers/");
    let mut read = 0;
    for (name, packed) in &file.tensors {
        let Some(dtype) = packed.kind().dtype() else { continue };
        let (t, e) = (packed.tensor(dtype, &cpu()).unwrap(), &expected[name]);
        assert_eq!(t.dims(), e.dims(), "{name}");
        match e.dtype() {
            DType::F32 => assert_eq!(bits(&t.cast(DType::F32).unwrap()), bits(e), "{name}"),
            _ => assert_eq!((t.dtype(), t.to_bytes().unwrap()), (e.dtype(), e.to_bytes().unwrap()), "{name}"),
        }
        read += 1;
    }
    assert_eq!(read, expected.len());
    // Every type that is read is in the file, by its name.
    for kind in TensorType::ALL.iter().filter(|kind| kind.dtype().is_some()) {
        assert_eq!(file.tensors[kind.name()].kind(), *kind);
    }
}

#[test]
fn numbers_are_rounded_once_to_other_dtypes() {
    let file = Gguf::open(at("types.gguf")).unwrap();
    for name in ["Q4_K", "MXFP4", "F16", "F64", "I16"] {
        let numbers = &file.tensors[name];
        let whole = numbers.tensor(numbers.kind().dtype().unwrap(), &cpu()).unwrap();
        for dtype in [DType::F64, DType::F32, DType::F16, DType::BF16] {
            let t = file.tensor(name, dtype, &cpu()).unwrap();
            assert_eq!(t.dtype(), dtype);
            let [t, expected] = [&t, &whole.cast(dtype).unwrap()].map(|t| bits(&t.cast(DType::F32).unwrap()));
            assert_eq!(t, expected, "{name} as {dtype}");
        }
    }
    for (name, dtype, kind, message) in [
        ("Q4_K", DType::I32, Kind::Dtype, "Q4_K: Q4_K has quantised floats, expected a dtype of floats, got i32"),
        ("IQ2_XXS", DType::F32, Kind::Unsupported, "IQ2_XXS: tensors of the type IQ2_XXS are not read"),
        ("absent", DType::F32, Kind::Format, "it has no tensor absent"),
    ] {
        let error = file.tensor(name, dtype, &cpu()).unwrap_err();
        assert_eq!((error.kind(), error.op()), (kind, at("types.gguf").display().to_string().as_str()), "{error}");
        assert_eq!(error.message(), message);
    }
}

#[test]
fn a_large_tensor_is_that_of_its_parts() {
    let (folder, small) = (tempfile::tempdir().unwrap(), normal([1, 64]));
    let path = folder.path().join("large.gguf");
    // More blocks than one thread takes, and no multiple of what threads take.
    let large = Tensor::concat(&[&small; 4099], 0).unwrap();
    save(&path, &[("w".to_string(), large)].into(), &BTreeMap::new(), |_, _| TensorType::Q8_0).unwrap();
    let read = Gguf::open(&path).unwrap().tensor("w", DType::F32, &cpu()).unwrap();
    let first = bits(&read.narrow(0, 0, 1).unwrap());
    assert!(bits(&read).chunks(64).all(|row| row == first));
}

#[test]
fn packed_bytes_stay_reachable() {
    let path = at("types.gguf");
    let (file, whole) = (Gguf::open(&path).unwrap(), fs::read(&path).unwrap());
    let packed = file.tensors["Q6_K"].clone();
    drop(file);
    let kind = packed.kind();
    assert_eq!((kind, kind.block_elements(), kind.block_bytes()), (TensorType::Q6K, 256, 210));
    assert_eq!(packed.shape().dims(), [2, 1024]);
    assert_eq!(packed.bytes(), &whole[packed.offset()..packed.offset() + 2 * 4 * 210]);
}

#[test]
fn metadata_have_their_values() {
    let file = Gguf::open(at("metadata.gguf")).unwrap();
    let numbers = |list: &[i32]| Value::from(Array::I32(list.to_vec()));
    for (key, value) in [
        ("general.alignment", Value::U32(64)),
        ("general.architecture", "llama".into()),
        ("u8", Value::U8(200)),
        ("i8", Value::I8(-100)),
        ("u16", Value::U16(60000)),
        ("i16", Value::I16(-30000)),
        ("u32", Value::U32(4_000_000_000)),
        ("i32", Value::I32(-2_000_000_000)),
        ("f32", Value::F32(0.1)),
        ("bool", true.into()),
        ("text", "größer".into()),
        ("u64", Value::U64(u64::MAX)),
        ("i64", Value::I64(i64::MIN)),
        ("f64", Value::F64(0.1)),
        ("f32s", Array::F32(vec![0.5, -1.5]).into()),
        ("bools", Array::Bool(vec![true, false, true]).into()),
        ("nested", Array::Array(vec![Array::I32(vec![1, 2]), Array::I32(vec![3])]).into()),
        ("tokenizer.ggml.token_type", numbers(&[3, 3, 1, 1, 6])),
    ] {
        assert_eq!(file.metadata.get(key), Some(&value), "{key}");
    }
    assert_eq!(file.texts("tokenizer.ggml.tokens").unwrap(), ["<s>", "</s>", "▁a", "é", ""]);
    assert_eq!(file.metadata["tokenizer.ggml.scores"].as_f64s().unwrap(), [0.0, 0.0, -1.5, -2.0, -3.0]);
    assert_eq!(file.metadata["tokenizer.ggml.token_type"].as_i64s().unwrap(), [3, 3, 1, 1, 6]);
    assert_eq!(file.metadata["bools"].as_bools().unwrap(), [true, false, true]);
    assert_eq!((file.count("u16").unwrap(), file.number("i16").unwrap()), (60000, -30000.0));
    assert_eq!((file.text("text").unwrap(), file.flag("bool").unwrap()), ("größer", true));
    assert!(file.tensors.values().all(|packed| packed.offset() % 64 == 0));
    let refused = |error: Error, message: &str| {
        assert_eq!((error.kind(), error.op()), (Kind::Format, at("metadata.gguf").display().to_string().as_str()));
        assert_eq!(error.message(), message);
    };
    refused(file.count("i8").unwrap_err(), "i8 is -100, expected a number of at least 0");
    refused(file.count("u64").unwrap_err(), "u64 is 18446744073709551615, expected a number of at least 0");
    refused(file.text("f32s").unwrap_err(), "f32s is [0.5, -1.5] (2), expected a text");
    refused(file.flag("absent").unwrap_err(), "it has no key absent, expected true or false");
}

#[test]
fn a_file_loads_as_any_other() {
    let (path, expected) = (at("types.gguf"), expected("numbers/"));
    let contents = load(&path, &cpu()).unwrap();
    assert_eq!(contents.tensors.keys().collect::<Vec<_>>(), expected.keys().collect::<Vec<_>>());
    assert_eq!(contents.tensors["BF16"].dtype(), DType::BF16);
    assert_eq!(bits(&contents.tensors["Q5_1"]), bits(&expected["Q5_1"]));
    assert_eq!(contents.skipped, [("IQ2_XXS".to_string(), "IQ2_XXS".to_string())].into());
    assert_eq!(load(at("metadata.gguf"), &cpu()).unwrap().metadata["f32"], "0.1");
    let shapes = shapes(&path).unwrap();
    assert_eq!((shapes["four"].dims(), shapes["IQ2_XXS"].dims()), (&[2, 1, 3, 2][..], &[1, 256][..]));
    assert_eq!(load_part(&path, &cpu(), |name| name == "vector").unwrap().len(), 1);
    let error = load_part(&path, &cpu(), |name| name == "IQ2_XXS").unwrap_err();
    assert!(error.message().contains("IQ2_XXS is IQ2_XXS, which cannot be read"), "{error}");
    let error = load_checked(&path, &cpu()).unwrap_err();
    assert!(error.kind() == Kind::Format && error.message().contains("no checksum"), "{error}");
}

fn normal(shape: [usize; 2]) -> Tensor {
    Tensor::randn(shape, 0.0, 1.0, DType::F32, &cpu(), &Rng::new(7)).unwrap()
}

/// The types that are written.
const WRITTEN: [TensorType; 10] = [
    TensorType::F32,
    TensorType::F16,
    TensorType::Bf16,
    TensorType::F64,
    TensorType::I32,
    TensorType::I64,
    TensorType::Q4_0,
    TensorType::Q8_0,
    TensorType::Q4K,
    TensorType::Q6K,
];

#[test]
fn blocks_are_those_of_the_package() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("blocks.gguf");
    let all = expected("quantise/");
    let mut compared = 0;
    for (case, numbers) in all.iter().filter_map(|(name, t)| Some((name.strip_suffix("/numbers")?, t))) {
        for kind in [TensorType::Q4_0, TensorType::Q8_0] {
            save(&path, &[("w".to_string(), numbers.clone())].into(), &BTreeMap::new(), |_, _| kind).unwrap();
            let file = Gguf::open(&path).unwrap();
            assert_eq!(
                file.tensors["w"].bytes(),
                all[&format!("{case}/{kind}")].to_vec::<u8>().unwrap(),
                "{case}, {kind}"
            );
            assert_eq!(file.count("general.quantization_version").unwrap(), 2);
            compared += 1;
        }
    }
    assert_eq!(compared, 6);
}

#[test]
fn what_is_written_is_read() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.gguf");
    let metadata = Gguf::open(at("metadata.gguf")).unwrap().metadata;
    let x = normal([6, 512]);
    let of_kind = |kind: TensorType| match kind {
        TensorType::I32 | TensorType::I64 => Tensor::arange(12, &cpu()).unwrap().reshape((2, 3, 2, 1)).unwrap(),
        _ => x.cast(kind.dtype().unwrap()).unwrap(),
    };
    let mut state: StateDict = WRITTEN.iter().map(|&kind| (kind.name().to_string(), of_kind(kind))).collect();
    state.insert("scalar".into(), Tensor::scalar(2.5f32, &cpu()).unwrap());
    state.insert("empty".into(), Tensor::zeros((0, 32), DType::F32, &cpu()).unwrap());
    state.insert("strided".into(), x.t().unwrap());
    let kind_of =
        |name: &str, _: &Tensor| WRITTEN.into_iter().find(|kind| kind.name() == name).unwrap_or(TensorType::F32);
    save(&path, &state, &metadata, kind_of).unwrap();
    let file = Gguf::open(&path).unwrap();
    let mut with_version = metadata.clone();
    with_version.insert("general.quantization_version".into(), Value::U32(2));
    assert_eq!(file.metadata, with_version);
    assert!(file.tensors.values().all(|packed| packed.bytes().is_empty() || packed.offset() % 64 == 0));
    for (name, t) in &state {
        let packed = &file.tensors[name];
        assert_eq!((packed.kind(), packed.shape()), (kind_of(name, t), t.shape()));
        let read = packed.tensor(packed.kind().dtype().unwrap(), &cpu()).unwrap();
        if packed.kind().block_elements() == 1 {
            let same = t.cast(read.dtype()).unwrap();
            assert_eq!(read.to_bytes().unwrap(), same.to_bytes().unwrap(), "{name}");
        }
    }
    // Equal arguments are equal bytes.
    let (first, again) = (fs::read(&path).unwrap(), folder.path().join("again.gguf"));
    save(&again, &state, &file.metadata, kind_of).unwrap();
    assert_eq!(fs::read(&again).unwrap(), first);
    // Where the package is at hand, `tests/golden/gguf_files.py --read` compares these.
    if let Ok(folder) = std::env::var("ISOGRAD_GGUF_OUT") {
        let read = load(&path, &cpu()).unwrap().tensors;
        let read = read.into_iter().map(|(name, t)| (name, t.cast(DType::F64).unwrap())).collect();
        fs::copy(&path, Path::new(&folder).join("written.gguf")).unwrap();
        isograd_nn::save(Path::new(&folder).join("written.safetensors"), &read, &Metadata::new()).unwrap();
    }
}

/// The root of the mean of the squared errors of standard normal numbers.
fn error_of(kind: TensorType, numbers: &Tensor) -> f64 {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.gguf");
    save(&path, &[("w".to_string(), numbers.clone())].into(), &BTreeMap::new(), |_, _| kind).unwrap();
    let read = Gguf::open(&path).unwrap().tensor("w", DType::F32, &cpu()).unwrap();
    let [read, numbers] = [&read, numbers].map(|t| t.to_vec::<f32>().unwrap());
    let squares = read.iter().zip(&numbers).map(|(a, b)| f64::from(a - b).powi(2)).sum::<f64>();
    (squares / numbers.len() as f64).sqrt()
}

#[test]
fn super_blocks_are_near_their_numbers() {
    let x = normal([16, 1024]);
    let [q4_0, q4_k, q6_k, q8_0] =
        [TensorType::Q4_0, TensorType::Q4K, TensorType::Q6K, TensorType::Q8_0].map(|kind| error_of(kind, &x));
    println!("Q4_0 {q4_0}, Q4_K {q4_k}, Q6_K {q6_k}, Q8_0 {q8_0}");
    // 32 normal numbers reach from -2.07 to 2.07 in the mean, in 15 steps of 0.28, whose error is 0.28 / sqrt(12) = 0.080 before the scales
    // are rounded. 16 of them reach 1.96 on one side, in 32 steps of 0.061, with 0.018.
    assert!(q4_k < 0.080 && q4_k < q4_0, "{q4_k}");
    assert!(q6_k < 0.020 && q8_0 < q6_k, "{q6_k}");
    // Numbers of a line of 16 integers are exact, whatever their sign, and so are equal ones.
    let line: Vec<f32> = (0..512).map(|i| ((i * 7) % 16) as f32 * 0.25 - if i < 256 { 1.0 } else { 0.0 }).collect();
    let line = Tensor::from_vec(line, (2, 256), &cpu()).unwrap();
    assert!(error_of(TensorType::Q4K, &line) < 0.25 * 0.02);
    for value in [0.0f32, 3.0, -0.5] {
        let equal = Tensor::from_vec(vec![value; 256], 256, &cpu()).unwrap();
        for kind in [TensorType::Q4K, TensorType::Q6K] {
            let error = error_of(kind, &equal);
            assert!(error <= 0.002 * f64::from(value.abs()), "{kind} of {value}: {error}");
        }
    }
}

#[test]
fn tensors_that_cannot_be_written() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("w.gguf");
    let t = |shape: &[usize], dtype: DType| Tensor::ones(shape.to_vec(), dtype, &cpu()).unwrap();
    let of = |value: f32| Tensor::from_vec(vec![value; 256], 256, &cpu()).unwrap();
    let long = "w".repeat(64);
    for (name, t, kind, expected, message) in [
        (
            "w",
            t(&[2, 33], DType::F32),
            TensorType::Q8_0,
            Kind::Shape,
            "w: Q8_0 has blocks of 32 elements, and the last dimension of [2, 33]",
        ),
        ("w", t(&[], DType::F32), TensorType::Q4K, Kind::Shape, "w: Q4_K has blocks of 256 elements"),
        (
            "w",
            t(&[1, 1, 1, 1, 32], DType::F32),
            TensorType::F32,
            Kind::Shape,
            "w: it has 5 dimensions, expected at most 4",
        ),
        ("w", t(&[256], DType::I64), TensorType::Q4K, Kind::Dtype, "w: it is i64, which Q4_K does not have"),
        ("w", t(&[2], DType::F32), TensorType::I32, Kind::Dtype, "w: it is f32, which I32 does not have"),
        ("w", t(&[256], DType::F32), TensorType::Q5K, Kind::Unsupported, "w: tensors of the type Q5_K are not written"),
        ("w", t(&[256], DType::I64), TensorType::I8, Kind::Unsupported, "w: tensors of the type I8 are not written"),
        ("w", of(f32::NAN), TensorType::Q6K, Kind::Value, "w: it has NaN, which Q6_K does not have"),
        ("w", of(f32::NEG_INFINITY), TensorType::Q8_0, Kind::Value, "w: it has -inf, which Q8_0 does not have"),
        (
            "w",
            of(1e7),
            TensorType::Q8_0,
            Kind::Value,
            "w: it has numbers up to 10000000, whose scale in Q8_0 is too large for f16",
        ),
        (&long, t(&[2], DType::F32), TensorType::F32, Kind::Value, "its name has 64 bytes, expected at most 63"),
    ] {
        let error = save(&path, &[(name.to_string(), t)].into(), &BTreeMap::new(), |_, _| kind).unwrap_err();
        assert_eq!(error.kind(), expected, "{error}");
        assert!(error.message().contains(message), "{error}");
    }
    let metadata = [("general.alignment".to_string(), Value::U32(24))].into();
    let error = save(&path, &StateDict::new(), &metadata, |_, _| TensorType::F32).unwrap_err();
    assert_eq!(error.message(), "general.alignment is 24, expected a power of two in 32 bits");
    assert!(!path.exists());
}

/// A file with one tensor of 4 floats, and what the test changes: the key, its value with the number of the kind, and the tensor.
fn file(version: u32, key: &str, value: &[u8], dims: &[u64], kind: u32, offset: u64) -> Vec<u8> {
    let text = |text: &str| [&(text.len() as u64).to_le_bytes()[..], text.as_bytes()].concat();
    let dims = [&(dims.len() as u32).to_le_bytes()[..], &dims.iter().flat_map(|d| d.to_le_bytes()).collect::<Vec<_>>()]
        .concat();
    let counts = [1u64.to_le_bytes(), 1u64.to_le_bytes()].concat();
    let tensor = [&text("blk.w")[..], &dims, &kind.to_le_bytes(), &offset.to_le_bytes()].concat();
    let mut bytes = [b"GGUF", &version.to_le_bytes()[..], &counts, &text(key), value, &tensor].concat();
    bytes.resize(bytes.len().next_multiple_of(32), 0);
    bytes.extend([1.0f32, 2.0, 3.0, 4.0].iter().flat_map(|x| x.to_le_bytes()));
    bytes
}

fn refused(bytes: &[u8]) -> Error {
    let file = tempfile::NamedTempFile::new().unwrap();
    fs::write(file.path(), bytes).unwrap();
    let errors = [
        Gguf::open(file.path()).map(drop).unwrap_err(),
        load(file.path(), &cpu()).map(drop).unwrap_err(),
        shapes(file.path()).map(drop).unwrap_err(),
    ];
    for error in &errors {
        assert_eq!((error.kind(), error.op()), (Kind::Format, file.path().display().to_string().as_str()), "{error}");
    }
    errors.into_iter().next().unwrap()
}

const U8_7: &[u8] = &[0, 0, 0, 0, 7];

#[test]
fn damage_is_named_with_its_place() {
    // A version before, and the data cut where a row ends.
    let path = tempfile::NamedTempFile::new().unwrap();
    fs::write(path.path(), file(2, "key", U8_7, &[2, 2], 0, 0)).unwrap();
    let whole = Gguf::open(path.path()).unwrap();
    assert_eq!(
        whole.tensors["blk.w"].tensor(DType::F32, &cpu()).unwrap().to_vec::<f32>().unwrap(),
        [1.0, 2.0, 3.0, 4.0]
    );
    assert_eq!(whole.metadata["key"], Value::U8(7));
    let array = |kind: u32, count: u64| [&[9, 0, 0, 0][..], &kind.to_le_bytes(), &count.to_le_bytes()].concat();
    let nested = [&array(9, 1)[..], &array(9, 1)[4..].repeat(4)].concat();
    for (bytes, message) in [
        (file(1, "key", U8_7, &[4], 0, 0), "a GGUF file of version 1, expected 2 or 3"),
        (
            file(3u32.swap_bytes(), "key", U8_7, &[4], 0, 0),
            "a GGUF file of version 3 in big-endian order, expected 2 or 3",
        ),
        (
            file(3, "key", &[77, 0, 0, 0, 7], &[4], 0, 0),
            "the key key, at byte 39: a value of the kind 77, expected 0 to 12",
        ),
        (file(3, "key", &[7, 0, 0, 0, 2], &[4], 0, 0), "the key key, at byte 39: a bool is [2], expected 0 or 1"),
        (
            file(3, "key", &array(8, 1 << 40), &[4], 0, 0),
            "the key key, at byte 43: 1099511627776 items of 8 bytes or more, and the file has ",
        ),
        (file(3, "key", &array(0, u64::MAX), &[4], 0, 0), "the key key, at byte 43: 18446744073709551615 items"),
        (file(3, "key", &nested, &[4], 0, 0), "more than 4 arrays within each other"),
        (
            file(3, "general.alignment", &[4, 0, 0, 0, 48, 0, 0, 0], &[4], 0, 0),
            "general.alignment is 48, expected a power of two",
        ),
        (file(3, "general.alignment", U8_7, &[4], 0, 0), "general.alignment is 7, expected a power of two in 32 bits"),
        (file(3, "key", U8_7, &[1; 5], 0, 0), "the tensor blk.w, at byte 53: 5 dimensions, expected at most 4"),
        (
            file(3, "key", U8_7, &[4], 4, 0),
            "the tensor blk.w, at byte 53: its type has the number 4, which is not known",
        ),
        (
            file(3, "key", U8_7, &[4], 12, 0),
            "at byte 53: Q4_K has blocks of 256 elements, and the last dimension of [4]",
        ),
        (
            file(3, "key", U8_7, &[1 << 40, 1 << 40], 0, 0),
            "the tensor blk.w, at byte 53: [1099511627776, 1099511627776] has more elements",
        ),
        (file(3, "key", U8_7, &[5], 0, 0), "the tensor blk.w has 20 bytes at 0 behind byte 96: the file has 112"),
        (file(3, "key", U8_7, &[4], 0, 32), "the tensor blk.w has 16 bytes at 32 behind byte 96: the file has 112"),
        (
            file(3, "key", U8_7, &[4], 0, 4),
            "the tensor blk.w has 16 bytes at 4 behind byte 96: expected a multiple of 32",
        ),
        (
            file(3, "key", U8_7, &[4], 0, u64::MAX - 31),
            "the tensor blk.w has 16 bytes at 18446744073709551584 behind byte 96",
        ),
        (b"GGUF\x03\0\0".to_vec(), "at byte 4: 4 bytes are expected, and the file has 3 more"),
    ] {
        let error = refused(&bytes);
        assert!(error.message().contains(message), "{error}");
    }
    let error = Gguf::open(at("expected.safetensors")).map(drop).unwrap_err();
    assert!(error.message().starts_with("not a GGUF file: it looks like a safetensors file"), "{error}");
}

#[test]
fn a_file_cut_anywhere_is_a_format_error() {
    let whole = file(3, "key", U8_7, &[4], 0, 0);
    (4..whole.len()).for_each(|length| drop(refused(&whole[..length])));
    for name in ["types.gguf", "metadata.gguf"] {
        // The last tensor is followed by padding alone.
        let whole = fs::read(at(name)).unwrap();
        let end = Gguf::open(at(name)).unwrap().tensors.values().map(|t| t.offset() + t.bytes().len()).max().unwrap();
        (4..end).step_by(13).for_each(|length| drop(refused(&whole[..length])));
    }
}

#[test]
fn names_that_are_twice_and_tensors_that_overlap_are_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("two.gguf");
    let t = Tensor::ones(16, DType::F32, &cpu()).unwrap();
    let state = [("one".to_string(), t.clone()), ("two".to_string(), t)].into();
    let metadata = [("k1".to_string(), Value::U8(1)), ("k2".to_string(), Value::U8(2))].into();
    save(&path, &state, &metadata, |_, _| TensorType::F32).unwrap();
    let changed = |from: &[u8], to: &[u8]| {
        let mut bytes = fs::read(&path).unwrap();
        let at = bytes.windows(from.len()).position(|part| part == from).unwrap();
        bytes[at..at + to.len()].copy_from_slice(to);
        refused(&bytes)
    };
    let error = changed(b"two", b"one");
    assert!(error.message().ends_with("the tensor one is there twice"), "{error}");
    let error = changed(b"k2", b"k1");
    assert!(error.message().ends_with("the key k1 is there twice"), "{error}");
    // Behind the name of the second are its rank, its extent and its type.
    let two = [&b"two\x01\0\0\0"[..], &16u64.to_le_bytes(), &0u32.to_le_bytes()].concat();
    let error = changed(&[&two[..], &64u64.to_le_bytes()].concat(), &[&two[..], &32u64.to_le_bytes()].concat());
    assert!(error.message().contains("the tensors one and two overlap: they have bytes "), "{error}");
}

#[test]
fn blocks_stay_as_they_are_from_file_to_file() {
    let (file, folder) = (Gguf::open(at("types.gguf")).unwrap(), tempfile::tempdir().unwrap());
    let path = folder.path().join("again.gguf");
    let blocks = file.tensors.iter().filter(|(_, packed)| packed.has_blocks());
    let weights: BTreeMap<String, QuantizedWeight> =
        blocks.map(|(name, packed)| (name.clone(), packed.weight(&cpu()).unwrap())).collect();
    assert_eq!(weights.len(), BlockFormat::ALL.iter().filter(|format| TensorType::of(**format).is_some()).count());
    for (name, weight) in &weights {
        let (packed, numbers) = (&file.tensors[name], weight.dequantize(DType::F32).unwrap());
        assert_eq!(bits(&numbers), bits(&packed.tensor(DType::F32, &cpu()).unwrap()), "{name}");
    }
    let state = StateDict::from([("bias".to_string(), normal([1, 3]))]);
    save_quantized(&path, &state, &weights, &BTreeMap::new(), |_, _| TensorType::F32).unwrap();
    let again = Gguf::open(&path).unwrap();
    for name in weights.keys() {
        let [old, new] = [&file, &again].map(|file| &file.tensors[name]);
        assert_eq!((old.kind(), old.bytes()), (new.kind(), new.bytes()), "{name}");
    }
    assert_eq!(again.tensors["bias"].kind(), TensorType::F32);
    let refused = |weights: [(&str, &QuantizedWeight); 1], kind, part: &str| {
        let weights = weights.map(|(name, weight)| (name.to_string(), weight.clone())).into();
        let error = save_quantized(&path, &state, &weights, &BTreeMap::new(), |_, _| TensorType::F32).unwrap_err();
        assert!(error.kind() == kind && error.message().contains(part), "{error}");
    };
    refused([("bias", &weights["Q4_0"])], Kind::Value, "a tensor and a quantised weight have this name");
    let normal_floats = QuantizedWeight::quantize(&normal([2, 64]), BlockFormat::Nf4).unwrap();
    refused([("w", &normal_floats)], Kind::Unsupported, "w: tensors of the type NF4 are not written");
    let error = file.tensors["F16"].weight(&cpu()).unwrap_err();
    assert!(error.kind() == Kind::Unsupported && error.message().contains("F16"), "{error}");
}
