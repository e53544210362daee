//! Files of every format, changed at random: no panic, no large allocation, and no wrong content where there is a checksum. The program counts
//! its allocations. `ISOGRAD_QUICK=1` tries a twentieth of the changes. `ISOGRAD_CORPUS` is a folder to which each file is written before it is changed,
//! for the targets in `fuzz`.

use flate2::{Compression, write::GzEncoder};
use isograd::data::graph::GraphFolder;
use isograd::data::images::{cifar100, read_image};
use isograd::data::mesh::{parse_obj, parse_ply};
use isograd::data::{HostTensor, TokenType, Tokens, csv, idx, npy};
use isograd::models::{CausalLm, Pretrained};
use isograd::nn::gguf::Gguf;
use isograd::nn::{Init, Metadata, StateDict, load, load_checked, save, shapes};
use isograd::parity::Folder;
use isograd::{DType, Device, Error, Kind, Tensor};
use isograd_tests::damaged::{Counting, counted, small_model};
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::path::{Path, PathBuf};
use std::sync::{Mutex, MutexGuard};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// One test at a time, so that no other allocates meanwhile.
fn alone() -> MutexGuard<'static, ()> {
    static LOCK: Mutex<()> = Mutex::new(());
    LOCK.lock().unwrap_or_else(|poisoned| poisoned.into_inner())
}

fn cpu() -> Device {
    Device::cpu().unwrap()
}

/// The changes of a file that are tried; `ISOGRAD_CHANGES` says another number.
fn changes() -> u64 {
    if let Ok(number) = std::env::var("ISOGRAD_CHANGES") {
        return number.parse().unwrap();
    }
    if std::env::var("ISOGRAD_QUICK").is_ok_and(|quick| quick == "1") { 1_000 } else { 20_000 }
}

/// Memory beside a file's content: buffers of readers, of which that of archives has 64 KiB, and texts of errors.
const BESIDE: usize = 128 << 10;

/// Draws of one change. Steele et al. 2014, "Fast Splittable Pseudorandom Number Generators".
struct Draws(u64);

impl Draws {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let z = (self.0 ^ (self.0 >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        let z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, n: usize) -> usize {
        (self.next() % n.max(1) as u64) as usize
    }

    /// The bytes after one to four changes.
    fn change(&mut self, whole: &[u8]) -> Vec<u8> {
        let mut bytes = whole.to_vec();
        for _ in 0..=self.below(4) {
            // Headers are at the ends, where half of the changes are.
            let length = if self.below(2) == 0 { bytes.len() } else { bytes.len().min(256) };
            let place = self.below(length);
            let at = if self.below(4) == 0 { bytes.len().saturating_sub(1 + place) } else { place };
            let end = (at + self.below(16) + 1).min(bytes.len());
            let special = [0, 1, 0x7f, 0x80, 0xff, b'"', b',', b'\n', b'0', b'9', b'-'];
            match self.below(8) {
                _ if bytes.is_empty() => bytes.push(0),
                0 => bytes[at] ^= 1 << self.below(8),
                1 => bytes[at] = self.next() as u8,
                2 => bytes[at] = special[self.below(special.len())],
                3 => bytes[at..end].fill(special[self.below(5)]),
                4 => drop(bytes.drain(at..end)),
                5 => {
                    let part = bytes[at..end].to_vec();
                    let to = self.below(bytes.len());
                    drop(bytes.splice(to..to, part));
                }
                6 => {
                    let part = bytes[at..end].to_vec();
                    let to = self.below(bytes.len() - part.len() + 1);
                    bytes[to..to + part.len()].copy_from_slice(&part);
                }
                _ if self.below(8) == 0 => bytes.truncate(at),
                _ => bytes[at] = bytes[at].wrapping_add(1),
            }
        }
        bytes
    }
}

/// Tries changes of a file. `read` reads changed bytes and checks what it got; an error must be one of the content, and name the file.
/// `content` is the number of bytes that the file holds, unpacked.
fn try_changes(name: &str, whole: &[u8], content: usize, mut read: impl FnMut(&[u8]) -> Result<(), Error>) {
    let (mut refused, mut most) = (0, 0);
    read(whole).unwrap();
    if let Ok(folder) = std::env::var("ISOGRAD_CORPUS") {
        fs::write(Path::new(&folder).join(name.replace([' ', ','], "_")), whole).unwrap();
    }
    for seed in 0..changes() {
        let bytes = Draws(seed).change(whole);
        let (result, peak) = counted(|| catch_unwind(AssertUnwindSafe(|| read(&bytes))));
        let limit = 2 * content.max(bytes.len()) + BESIDE;
        assert!(peak <= limit, "{name}, seed {seed}: {peak} bytes for a file of {}", bytes.len());
        most = most.max(peak);
        match result.unwrap_or_else(|_| panic!("{name}, seed {seed}: a panic")) {
            Ok(()) => {}
            Err(error) => {
                assert_eq!(error.kind(), Kind::Format, "{name}, seed {seed}: {error}");
                assert!(error.op().contains("changed"), "{name}, seed {seed}: {error}");
                refused += 1;
            }
        }
    }
    println!("{name}: {refused} of {} refused; at most {most} bytes for {content}", changes());
}

/// A place for changed files.
fn place() -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("changed");
    (folder, path)
}

fn bits(state: &StateDict) -> BTreeMap<String, (DType, Vec<usize>, Vec<u8>)> {
    state.iter().map(|(name, t)| (name.clone(), (t.dtype(), t.dims().to_vec(), t.to_bytes().unwrap()))).collect()
}

/// Tensors of about 24 KiB.
fn weights() -> StateDict {
    let t = |n: usize| Tensor::arange(n, &cpu()).unwrap();
    let f32s = t(4096).cast(DType::F32).unwrap().reshape((64, 64)).unwrap();
    [("a.weight", f32s), ("b.bias", t(512)), ("c.mask", t(64).cast(DType::Bool).unwrap())]
        .map(|(name, t)| (name.to_string(), t))
        .into()
}

#[test]
fn tables_are_read_in_parts() {
    let _alone = alone();
    const LITTLE: usize = 32 << 20;
    let blank = vec![b'\n'; 1 << 20];
    let mut encoder = GzEncoder::new(Vec::new(), Compression::fast());
    (0..256).for_each(|_| encoder.write_all(&blank).unwrap());
    encoder.write_all(b"1,0\n").unwrap();
    let packed = encoder.finish().unwrap();
    let (table, most) =
        counted(|| csv::Table::parse(Path::new("some.csv"), &packed, &csv::Options::default()).unwrap());
    assert_eq!((table.len(), table.numbers().unwrap().to_vec::<f32>().unwrap()), (1, vec![1.0]));
    assert!(most < LITTLE, "{} MiB for one line behind 256 MiB of blank ones", most >> 20);
    // And from a file that is not packed.
    let file = tempfile::NamedTempFile::new().unwrap();
    (0..256).for_each(|_| file.as_file().write_all(&blank).unwrap());
    file.as_file().write_all(b"1,0\n").unwrap();
    let (table, most) = counted(|| csv::Table::read(file.path(), &csv::Options::default()).unwrap());
    assert_eq!(table.len(), 1);
    assert!(most < LITTLE, "{} MiB for one line of a file of 256 MiB", most >> 20);
}

#[test]
fn weights_are_in_memory_once() {
    let _alone = alone();
    const SIZE: usize = 64 << 20;
    let (_folder, path) = place();
    // The device may keep the memory of tensors that are gone, so that no tensor is made before.
    let part = |i: usize| {
        format!(
            r#""{i}":{{"dtype":"F32","shape":[{}],"data_offsets":[{},{}]}}"#,
            SIZE / 16,
            i * SIZE / 4,
            (i + 1) * SIZE / 4
        )
    };
    let header = format!("{{{}}}", (0..4).map(part).collect::<Vec<_>>().join(","));
    let file = [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &vec![1; SIZE]].concat();
    fs::write(&path, file).unwrap();
    let (loaded, most) = counted(|| load(&path, &cpu()).unwrap().tensors);
    assert_eq!(loaded.len(), 4);
    assert!((SIZE..SIZE + (1 << 20)).contains(&most), "{} KiB for weights of {} KiB", most >> 10, SIZE >> 10);
}

#[test]
fn changed_files_of_npy() {
    let _alone = alone();
    let (_folder, path) = place();
    let array = HostTensor::new(&(0..6000).map(|i| i as f32).collect::<Vec<_>>(), [60, 100]).unwrap();
    npy::write(&path, &array).unwrap();
    let whole = fs::read(&path).unwrap();
    try_changes("npy", &whole, whole.len(), |bytes| {
        let array = npy::parse(Path::new("changed"), bytes)?;
        assert!(array.dims().iter().product::<usize>() * array.dtype().size() <= 4 * bytes.len());
        Ok(())
    });
}

#[test]
fn changed_packed_files_of_npy() {
    let _alone = alone();
    let (_folder, path) = place();
    let array = HostTensor::new(&(0..6000).map(|i| (i * i) as f32).collect::<Vec<_>>(), [60, 100]).unwrap();
    npy::write(&path, &array).unwrap();
    let plain = fs::read(&path).unwrap();
    let mut encoder = GzEncoder::new(Vec::new(), Compression::default());
    encoder.write_all(&plain).unwrap();
    try_changes("npy, packed", &encoder.finish().unwrap(), plain.len(), |bytes| {
        fs::write(&path, bytes).unwrap();
        assert_eq!(npy::read(&path)?, array);
        Ok(())
    });
}

#[test]
fn changed_configurations() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("changed");
    let init = Init::new(&cpu());
    CausalLm::new(&small_model(), &init).unwrap().save(&folder).unwrap();
    let path = folder.join("config.json");
    let whole = fs::read(&path).unwrap();
    try_changes("config.json", &whole, 1 << 20, |bytes| {
        fs::write(&path, bytes).unwrap();
        match CausalLm::load(&folder, &init) {
            // Options that the weights do not have.
            Err(error) if matches!(error.kind(), Kind::Value | Kind::Attr) => Ok(()),
            found => found.map(drop),
        }
    });
}

#[test]
fn changed_cases() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("changed");
    fs::create_dir(&folder).unwrap();
    let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/cli/tests/cases");
    for name in ["cases.json", "pytorch.safetensors"] {
        fs::copy(original.join(name), folder.join(name)).unwrap();
    }
    let path = folder.join("cases.json");
    let whole = fs::read(&path).unwrap();
    try_changes("cases.json", &whole, 16 * whole.len(), |bytes| {
        fs::write(&path, bytes).unwrap();
        Folder::read(&folder).map(drop).map_err(|why| Error::format(why, "it is refused"))
    });
}

#[test]
fn changed_graphs() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("changed");
    fs::create_dir(&folder).unwrap();
    let lines = |line: &dyn Fn(usize) -> String| (0..100).map(line).collect::<String>();
    let splits = ["train", "valid", "test", ""];
    let files = [
        ("edges.csv", lines(&|i| format!("{i},{}\n", (i * 7) % 100))),
        ("features.csv", lines(&|i| format!("{i}.5,-{i}e-1,{}\n", i % 3))),
        ("labels.csv", lines(&|i| format!("{},{}\n", i % 4, splits[i % 4]))),
    ];
    files.iter().for_each(|(name, text)| fs::write(folder.join(name), text).unwrap());
    for (name, text) in &files {
        // A cell of one digit is a number of eight bytes, twice while a list grows.
        try_changes(name, text.as_bytes(), 16 * text.len(), |bytes| {
            fs::write(folder.join(name), bytes).unwrap();
            let graph = GraphFolder::open(&folder)?;
            assert_eq!((graph.labels.len(), graph.src.len()), (graph.nodes(), graph.dst.len()));
            Ok(())
        });
        fs::write(folder.join(name), text).unwrap();
    }
}

#[test]
fn changed_files_of_npz() {
    let _alone = alone();
    let (_folder, path) = place();
    let arrays: BTreeMap<String, HostTensor> =
        (0..4).map(|i| (format!("array {i}"), HostTensor::vector(&[i as f64; 700]))).collect();
    npy::write_all(&path, &arrays).unwrap();
    let packed = include_bytes!("../../crates/data/tests/arrays.npz");
    for (name, whole) in [("npz", fs::read(&path).unwrap()), ("npz, packed", packed.to_vec())] {
        let arrays = npy::parse_all(Path::new("whole"), &whole).unwrap();
        try_changes(name, &whole, whole.len(), |bytes| {
            let found = npy::parse_all(Path::new("changed"), bytes)?;
            assert!(found.iter().all(|(name, array)| arrays.get(name) == Some(array)));
            Ok(())
        });
    }
}

#[test]
fn changed_files_of_pytorch() {
    let _alone = alone();
    let (_folder, path) = place();
    for name in ["checkpoint.pt", "dtypes.pt", "views.pt", "protocol_5.pt"] {
        let original = Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/torch_files").join(name);
        let expected = bits(&load(&original, &cpu()).unwrap().tensors);
        let whole = fs::read(&original).unwrap();
        try_changes(name, &whole, whole.len(), |bytes| {
            fs::write(&path, bytes).unwrap();
            let found = bits(&load(&path, &cpu())?.tensors);
            assert_eq!(found, expected);
            shapes(&path).map(drop)
        });
    }
}

#[test]
fn changed_files_of_gguf() {
    let _alone = alone();
    let (_folder, path) = place();
    for name in ["types.gguf", "metadata.gguf"] {
        let whole = fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("golden/gguf_files").join(name)).unwrap();
        // Two bits of Q2_K are a float of 32, and a value of the metadata has at least 13 bytes in the file.
        try_changes(name, &whole, 12 * whole.len(), |bytes| {
            fs::write(&path, bytes).unwrap();
            // There is no checksum: other numbers are no error, but all that is there is in the file.
            let file = Gguf::open(&path)?;
            assert!(file.tensors.values().map(|packed| packed.bytes().len()).sum::<usize>() <= bytes.len());
            assert_eq!(shapes(&path)?.len(), file.tensors.len());
            load(&path, &cpu()).map(drop)
        });
    }
}

/// The content of a model of ONNX: its parameters, and messages of its graph, which take more than their bytes.
#[test]
fn changed_models_of_onnx() {
    let _alone = alone();
    let (_folder, path) = place();
    let init = Init::new(&cpu());
    let network = isograd::nn::Linear::new(16, 8, &init).unwrap();
    let x = Tensor::zeros((1, 16), DType::F32, &cpu()).unwrap();
    let export = isograd::onnx::Export::new(&network).input(isograd::onnx::Input::new("x", &x));
    let model = export.run(|x| Ok(vec![isograd::nn::Forward::forward(&network, &x[0])?.softmax(-1)?])).unwrap();
    let whole = model.to_bytes().unwrap();
    try_changes("onnx", &whole, whole.len(), |bytes| {
        fs::write(&path, bytes).unwrap();
        match isograd::onnx::load(&path, &cpu()) {
            Ok(model) => {
                // Changed numbers of a graph are errors of its nodes.
                let _ = model.run(&[("x", x.clone())]);
                Ok(())
            }
            // The name of an operator, the type of an input or the opset was changed.
            Err(error) if error.kind() == Kind::Unsupported => Ok(()),
            Err(error) => Err(error),
        }
    });
}

#[test]
fn changed_tables() {
    let _alone = alone();
    let text: String = (0..400).map(|i| format!("{}.5,-{i}e-2,\"{i}\",{}\n", i * i, i % 3)).collect();
    for features in [csv::Features::Numbers, csv::Features::Inferred] {
        let options = csv::Options { features, learn: csv::Learn::Classes, ..csv::Options::default() };
        // A cell of two letters may be a number of four bytes, and one of the values that are counted.
        try_changes(&format!("csv, {features:?}"), text.as_bytes(), 16 * text.len(), |bytes| {
            let table = csv::Table::parse(Path::new("changed"), bytes, &options)?;
            let encoding = csv::Encoding::fit(&table, &csv::EncodingOptions::default());
            // All columns may have become texts.
            if let Ok(encoding) = encoding {
                let numbers = encoding.encode(&table)?.numbers();
                assert_eq!(numbers.dims(), [table.len(), encoding.numbers()]);
                assert!(numbers.to_vec::<f32>()?.iter().all(|x| x.is_finite()));
            }
            Ok(())
        });
    }
}

#[test]
fn changed_files_of_safetensors() {
    let _alone = alone();
    let (_folder, path) = place();
    let metadata = Metadata::from([("format".to_string(), "pt".to_string())]);
    save(&path, &weights(), &metadata).unwrap();
    let (whole, expected) = (fs::read(&path).unwrap(), bits(&weights()));
    try_changes("safetensors", &whole, whole.len(), |bytes| {
        fs::write(&path, bytes).unwrap();
        assert_eq!(bits(&load_checked(&path, &cpu())?.tensors), expected);
        Ok(())
    });
}

#[test]
fn changed_shards() {
    let _alone = alone();
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("changed");
    fs::create_dir(&folder).unwrap();
    let (first, second): (StateDict, StateDict) = weights().into_iter().partition(|(name, _)| name.as_str() < "b");
    let metadata = Metadata::from([("format".to_string(), "pt".to_string())]);
    let names = ["one.safetensors", "two.safetensors", "model.safetensors.index.json"];
    save(folder.join(names[0]), &first, &metadata).unwrap();
    save(folder.join(names[1]), &second, &metadata).unwrap();
    let index = r#"{"metadata": {"total_size": 20544}, "weight_map": {"a.weight": "one.safetensors", "b.bias": "two.safetensors", "c.mask": "two.safetensors"}}"#;
    fs::write(folder.join(names[2]), index).unwrap();
    let expected = bits(&weights());
    for name in names {
        let path = folder.join(name);
        let whole = fs::read(&path).unwrap();
        try_changes(name, &whole, 24 << 10, |bytes| {
            fs::write(&path, bytes).unwrap();
            let contents = match load(&folder, &cpu()) {
                // A file that the changed index names and that is not there.
                Err(error) if error.kind() == Kind::Io && name == names[2] => return Ok(()),
                contents => contents?,
            };
            // A file whose checksum has another name has none.
            if contents.metadata == metadata {
                assert!(bits(&contents.tensors).iter().all(|(name, t)| expected.get(name) == Some(t)));
            }
            Ok(())
        });
        fs::write(&path, whole).unwrap();
    }
}

#[test]
fn changed_files_of_tokens() {
    let _alone = alone();
    let (_folder, path) = place();
    let whole: Vec<u8> = (0..8000u16).flat_map(|t| t.to_le_bytes()).collect();
    // A token is an i64 for the caller.
    try_changes("tokens", &whole, 4 * whole.len(), |bytes| {
        fs::write(&path, bytes).unwrap();
        let tokens = Tokens::open(&path, TokenType::U16)?;
        assert_eq!((tokens.len(), tokens.get(0, usize::MAX)?.len()), (bytes.len() / 2, bytes.len() / 2));
        Ok(())
    });
}

#[test]
fn changed_files_of_idx() {
    let _alone = alone();
    for (kind, size) in [(8u8, 1), (9, 1), (11, 2), (12, 4), (13, 4), (14, 8)] {
        let whole = [&[0, 0, kind, 2, 0, 0, 0, 30, 0, 0, 0, 5][..], &vec![7; 150 * size]].concat();
        try_changes(&format!("idx {kind}"), &whole, whole.len(), |bytes| {
            idx::parse(Path::new("changed"), bytes).map(drop)
        });
    }
}

/// The bytes of a PNG file, whose pixels are grey and lighter in each row. It has the first `lines` of its rows.
fn png([rows, columns]: [u32; 2], lines: u32) -> Vec<u8> {
    let chunk = |name: &[u8; 4], data: &[u8]| {
        let mut sum = flate2::Crc::new();
        sum.update(&[name, data].concat());
        [&(data.len() as u32).to_be_bytes(), &name[..], data, &sum.sum().to_be_bytes()].concat()
    };
    let line = |row: u32| [vec![0], vec![(row * 255 / rows) as u8; 3 * columns as usize]].concat();
    let pixels: Vec<u8> = (0..lines).flat_map(line).collect();
    let mut packed = flate2::write::ZlibEncoder::new(Vec::new(), Compression::default());
    packed.write_all(&pixels).unwrap();
    let head = [&columns.to_be_bytes()[..], &rows.to_be_bytes(), &[8, 2, 0, 0, 0]].concat();
    let chunks = [chunk(b"IHDR", &head), chunk(b"IDAT", &packed.finish().unwrap()), chunk(b"IEND", &[])];
    [&b"\x89PNG\r\n\x1a\n"[..], &chunks.concat()].concat()
}

#[test]
fn large_and_long_pictures_take_little_memory() {
    let _alone = alone();
    let (_folder, path) = place();
    fs::write(&path, png([60_000, 1], 60_000)).unwrap();
    let (read, most) = counted(|| read_image(&path, [224, 224]).unwrap());
    assert_eq!(read.dims(), [3, 224, 224]);
    assert!((126..=128).contains(&read.to_vec::<u8>().unwrap()[224 * 112]));
    assert!(most < 8 << 20, "{most} bytes");
    // Their pixels are not there.
    fs::write(&path, png([20_000, 20_000], 1)).unwrap();
    let (error, most) = counted(|| read_image(&path, [224, 224]).unwrap_err());
    assert!(error.message().contains("20000 x 20000 pixels, expected at most 100000000"), "{error}");
    assert!(most < 1 << 20, "{most} bytes");
}

#[test]
fn changed_pictures() {
    let _alone = alone();
    let (_folder, path) = place();
    // As many bytes as the pixels have that are allowed at most, and as decoders may have.
    const PIXELS: usize = 450 << 20;
    let jpeg = include_bytes!("../../crates/data/tests/picture.jpg");
    for (name, whole) in [("png", png([12, 20], 12)), ("jpeg", jpeg.to_vec())] {
        try_changes(name, &whole, PIXELS, |bytes| {
            fs::write(&path, bytes).unwrap();
            read_image(&path, [8, 8]).map(|image| assert_eq!(image.dims(), [3, 8, 8]))
        });
    }
    let folder = tempfile::tempdir().unwrap();
    let folder = folder.path().join("changed");
    fs::create_dir(&folder).unwrap();
    try_changes("cifar", &[9; 3 * (2 + 3072)], 2 * 3 * 3074, |bytes| {
        ["train.bin", "test.bin"].iter().for_each(|name| fs::write(folder.join(name), bytes).unwrap());
        cifar100(&folder).map(drop)
    });
}

#[test]
fn changed_meshes() {
    let _alone = alone();
    let obj = "v 0 0 0\nv 1 0 0\nv 1 1 0 \\\n\nv 0 1 0\nvt 0 0\nf 1 2/1 3\nf -1// 1 2 3\n".repeat(20);
    try_changes("obj", obj.as_bytes(), 16 * obj.len(), |bytes| parse_obj(Path::new("changed"), bytes).map(drop));
    let head = |kind: &str| {
        format!(
            "ply\nformat {kind} 1.0\nelement vertex 30\nproperty float x\nproperty float y\nproperty float z\n\
             element face 10\nproperty list uchar int vertex_indices\nend_header\n"
        )
        .into_bytes()
    };
    let text = [head("ascii"), b"0 0.5 1\n".repeat(30), b"3 0 1 2\n".repeat(10)].concat();
    let face = [&[3u8][..], &[0, 0, 0, 0, 1, 0, 0, 0, 2, 0, 0, 0]].concat();
    let binary = [head("binary_little_endian"), vec![0; 30 * 12], face.repeat(10)].concat();
    for (name, whole) in [("ply text", text), ("ply", binary)] {
        // The reader makes room for a list as soon as it has its length.
        try_changes(name, &whole, 4 << 20, |bytes| parse_ply(Path::new("changed"), bytes).map(drop));
    }
}

#[test]
fn changed_tables_of_columns() {
    let _alone = alone();
    let (_folder, path) = place();
    let options = csv::Options { learn: csv::Learn::Classes, ..csv::Options::default() };
    for name in ["none.parquet", "snappy.parquet", "gzip.parquet", "lz4.parquet", "lz4.feather", "plain.arrow"] {
        let whole =
            fs::read(Path::new(env!("CARGO_MANIFEST_DIR")).join("../crates/data/tests/tables").join(name)).unwrap();
        try_changes(name, &whole, 64 << 20, |bytes| {
            fs::write(&path, bytes).unwrap();
            // The first bytes decide about the format.
            csv::Table::read(&path, &options).map(drop)
        });
    }
}

#[test]
fn changed_tokenizers() {
    let _alone = alone();
    let (_folder, path) = place();
    let whole = include_bytes!("../../crates/data/tests/tokenizer.json");
    try_changes("tokenizer.json", whole, 32 << 20, |bytes| {
        fs::write(&path, bytes).unwrap();
        isograd::data::tokenizer::load(&path)?.to_json().map(drop)
    });
}
