//! Files: every dtype, every damage, and going on as if nothing had happened.

use crate::common::{cpu, values};
use isograd_core::{DType, Kind, Result, Tensor, replace_file};
use isograd_nn::{
    Adam, Checkpoint, Contents, Dropout, Forward, GradScaler, Init, Linear, Metadata, Module, Optimizer, Relu,
    Sequential, StateDict, load, load_checked, load_part, save, shapes,
};
use proptest::prelude::*;
use std::fs;
use std::path::Path;

/// Tensors of all dtypes, ranks 0 to 3, empty and strided.
fn every_dtype() -> StateDict {
    let mut state = StateDict::new();
    let x = Tensor::from_vec(vec![1.5f64, -0.0, f64::NAN, f64::INFINITY, 1e-300, 3.0], (2, 3), &cpu()).unwrap();
    for dtype in DType::ALL {
        let source =
            if dtype.is_float() { x.clone() } else { Tensor::arange(6, &cpu()).unwrap().reshape((2, 3)).unwrap() };
        state.insert(format!("{dtype}.matrix"), source.cast(dtype).unwrap());
        state.insert(format!("{dtype}.empty"), Tensor::zeros((0, 2), dtype, &cpu()).unwrap());
        state.insert(format!("{dtype}.scalar"), Tensor::ones((), dtype, &cpu()).unwrap());
    }
    state.insert("strided".into(), x.t().unwrap());
    state.insert("name with \"quotes\" and ü".into(), Tensor::ones((1, 2, 1), DType::F32, &cpu()).unwrap());
    state
}

fn small(path: &Path) -> StateDict {
    let state: StateDict = [
        ("a".to_string(), Tensor::from_vec(vec![1.0f32, 2.0], 2, &cpu()).unwrap()),
        ("b".to_string(), Tensor::from_vec(vec![true, false], 2, &cpu()).unwrap()),
    ]
    .into();
    save(path, &state, &texts(&[("format", "pt"), ("text", "some")])).unwrap();
    state
}

fn texts(texts: &[(&str, &str)]) -> Metadata {
    texts.iter().map(|(key, text)| (key.to_string(), text.to_string())).collect()
}

fn bytes(state: &StateDict) -> Vec<(&String, DType, Vec<usize>, Vec<u8>)> {
    state.iter().map(|(name, t)| (name, t.dtype(), t.dims().to_vec(), t.to_bytes().unwrap())).collect()
}

#[test]
fn every_dtype_comes_back() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("all.safetensors");
    let state = every_dtype();
    let metadata = texts(&[("progress", r#"{"epoch": 3}"#), ("", "ü")]);
    save(&path, &state, &metadata).unwrap();
    let loaded = load_checked(&path, &cpu()).unwrap();
    assert_eq!(bytes(&loaded.tensors), bytes(&state));
    assert_eq!(loaded.metadata, metadata);
    // The same tensors are the same bytes, and others can read them.
    let written = fs::read(&path).unwrap();
    save(&path, &loaded.tensors, &loaded.metadata).unwrap();
    assert_eq!(fs::read(&path).unwrap(), written);
    let other = safetensors::SafeTensors::deserialize(&written).unwrap();
    assert_eq!(other.len(), state.len());
    assert_eq!(other.tensor("strided").unwrap().shape(), [3, 2]);
    assert_eq!(u64::from_le_bytes(written[..8].try_into().unwrap()) % 8, 0);
    // Nothing is left beside it.
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
    save(&path, &StateDict::new(), &Metadata::new()).unwrap();
    assert!(load(&path, &cpu()).unwrap().tensors.is_empty());
}

#[test]
fn files_of_others_load() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let data: Vec<u8> = [1.0f32, 2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = || safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![2], &data).unwrap();
    fs::write(&path, safetensors::serialize([("w", view())], None).unwrap()).unwrap();
    let loaded = load(&path, &cpu()).unwrap();
    assert_eq!((values(&loaded.tensors["w"]), loaded.metadata), (vec![1.0, 2.0], Metadata::new()));
    // Their texts come with them, and go on with the next save.
    let metadata = texts(&[("format", "pt"), ("modelspec.title", "a model")]);
    let given = Some(metadata.clone().into_iter().collect());
    fs::write(&path, safetensors::serialize([("w", view())], given).unwrap()).unwrap();
    let loaded = load(&path, &cpu()).unwrap();
    assert_eq!(loaded.metadata, metadata);
    save(&path, &loaded.tensors, &loaded.metadata).unwrap();
    let (_, header) = safetensors::SafeTensors::read_metadata(&fs::read(&path).unwrap()).unwrap();
    assert_eq!(header.metadata().as_ref().unwrap()["format"], "pt");
    assert_eq!(load_checked(&path, &cpu()).unwrap().metadata, metadata);
    // No checksum is asked of them, unless somebody insists on it.
    fs::write(&path, safetensors::serialize([("w", view())], None).unwrap()).unwrap();
    let error = load_checked(&path, &cpu()).unwrap_err();
    assert_eq!((error.kind(), error.op()), (Kind::Format, path.display().to_string().as_str()));
    assert!(error.message().contains("no checksum"), "{error}");
}

#[test]
fn elements_of_other_types_are_converted_or_skipped() {
    use safetensors::Dtype;
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("other.safetensors");
    let data: Vec<u8> = [1.0f32, -2.0].iter().flat_map(|v| v.to_le_bytes()).collect();
    let view = |dtype, n| safetensors::tensor::TensorView::new(dtype, vec![n], &data).unwrap();
    let tensors = [
        ("i8", view(Dtype::I8, 8)),
        ("u16", view(Dtype::U16, 4)),
        ("u64", view(Dtype::U64, 1)),
        ("f8", view(Dtype::F8_E5M2, 8)),
        ("complex", view(Dtype::C64, 1)),
    ];
    fs::write(&path, safetensors::serialize(tensors, None).unwrap()).unwrap();
    // The sign of -2.0 is the highest bit, so that the u64 is too large for i64.
    let error = load(&path, &cpu()).unwrap_err();
    assert_eq!(error.kind(), Kind::Format);
    assert!(error.message().contains("u64 is unsigned, of 64 bits, and has 13835058056347516928"), "{error}");
    let state = load_part(&path, &cpu(), |name| name != "u64" && name != "complex").unwrap();
    assert_eq!(state["i8"].to_vec::<i32>().unwrap(), [0, 0, -128, 63, 0, 0, 0, -64]);
    assert_eq!(state["u16"].to_vec::<i32>().unwrap(), [0, 0x3f80, 0, 0xc000]);
    assert_eq!((state["f8"].dtype(), values(&state["f8"])[3], values(&state["f8"])[7]), (DType::F16, 1.75, -2.0));
    let error = load_part(&path, &cpu(), |name| name == "complex").unwrap_err();
    assert!(
        error.kind() == Kind::Format && error.message().contains("complex is C64, which cannot be read"),
        "{error}"
    );
    fs::write(&path, safetensors::serialize([("w", view(Dtype::F32, 2)), ("c", view(Dtype::C64, 1))], None).unwrap())
        .unwrap();
    let Contents { tensors, skipped, .. } = load(&path, &cpu()).unwrap();
    assert_eq!((values(&tensors["w"]), tensors.len()), (vec![1.0, -2.0], 1));
    assert_eq!(skipped, texts(&[("c", "C64")]));
}

#[test]
fn files_of_other_formats_are_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("model.h5");
    for (bytes, expected) in [
        (
            &b"\x89HDF\r\n\x1a\n\0\0\0\0"[..],
            "neither a safetensors file nor one of torch.save: it looks like an HDF5 file",
        ),
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:4\n", "run `git lfs pull`"),
        (b"<!DOCTYPE html>", "it looks like a web page"),
        (b"\x80\x02\x8a\x0al\xfc\x9cF\xf9 j\xa8P\x19.\x80", "before PyTorch 1.6; in Python: torch.save(torch.load("),
        (b"", "not a whole safetensors file: it ends before its header"),
        (b"some other bytes", "not a whole safetensors file"),
    ] {
        fs::write(&path, bytes).unwrap();
        for error in [load(&path, &cpu()).map(drop).unwrap_err(), shapes(&path).map(drop).unwrap_err()] {
            assert_eq!((error.kind(), error.op()), (Kind::Format, path.display().to_string().as_str()));
            assert!(error.message().contains(expected), "{error}");
        }
    }
}

#[test]
fn a_file_cut_anywhere_is_a_format_error_that_names_it() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.safetensors");
    small(&path);
    let whole = fs::read(&path).unwrap();
    for length in 0..whole.len() {
        fs::write(&path, &whole[..length]).unwrap();
        let error = load(&path, &cpu()).unwrap_err();
        assert_eq!(error.kind(), Kind::Format, "{length} bytes: {error}");
        assert_eq!(error.op(), path.display().to_string());
    }
    fs::write(&path, [&whole[..], &[0]].concat()).unwrap();
    assert_eq!(load(&path, &cpu()).unwrap_err().kind(), Kind::Format);
}

#[test]
fn the_checksum_of_an_earlier_version_is_named() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("old.safetensors");
    let data = 1f32.to_le_bytes();
    let view = safetensors::tensor::TensorView::new(safetensors::Dtype::F32, vec![1], &data).unwrap();
    let metadata = [("isograd", "text"), ("isograd.checksum", "0123456789abcdef")];
    let metadata = metadata.map(|(key, text)| (key.to_string(), text.to_string())).into();
    fs::write(&path, safetensors::serialize([("w", view)], Some(metadata)).unwrap()).unwrap();
    // Its weights can be taken, but no run goes on with what nobody has checked.
    assert_eq!(load(&path, &cpu()).unwrap().metadata, texts(&[("isograd", "text")]));
    for error in [load_checked(&path, &cpu()).map(drop), Checkpoint::load(&path, &cpu()).map(drop)] {
        let error = error.unwrap_err();
        assert_eq!(error.kind(), Kind::Format);
        assert!(error.message().contains("of an earlier version"), "{error}");
    }
    for name in ["isograd.crc32", "isograd.checksum"] {
        let error = save(&path, &StateDict::new(), &texts(&[(name, "mine")])).unwrap_err();
        assert_eq!(error.kind(), Kind::Value, "{error}");
    }
}

#[test]
fn a_flipped_bit_is_noticed_unless_it_means_nothing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("small.safetensors");
    let state = small(&path);
    let whole = fs::read(&path).unwrap();
    let mut unnoticed = 0;
    for bit in 0..whole.len() * 8 {
        let mut flipped = whole.clone();
        flipped[bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, flipped).unwrap();
        assert_eq!(load_checked(&path, &cpu()).map(drop).unwrap_err().kind(), Kind::Format, "bit {bit}");
        match load(&path, &cpu()) {
            Err(error) => assert_eq!(error.kind(), Kind::Format, "bit {bit}: {error}"),
            // The name of the checksum itself.
            Ok(loaded) => {
                unnoticed += 1;
                assert_eq!(bytes(&loaded.tensors), bytes(&state), "bit {bit}");
                assert_eq!(loaded.metadata["text"], "some", "bit {bit}");
            }
        }
    }
    assert!(unnoticed < 8 * "isograd.crc32".len(), "{unnoticed}");
}

#[test]
fn a_checkpoint_whose_checksum_has_another_name_is_refused() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    Run::new(1).checkpoint().save(&path).unwrap();
    let whole = fs::read(&path).unwrap();
    let header = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
    let key = b"isograd.c";
    let at = whole[..header].windows(key.len()).position(|w| w == key).unwrap();
    for bit in 0..key.len() * 8 {
        let mut flipped = whole.clone();
        flipped[at + bit / 8] ^= 1 << (bit % 8);
        fs::write(&path, flipped).unwrap();
        let error = Checkpoint::load(&path, &cpu()).map(drop).expect_err(&format!("bit {bit}"));
        assert_eq!((error.kind(), error.op()), (Kind::Format, path.display().to_string().as_str()), "{error}");
    }
}

#[test]
fn what_a_killed_write_left_is_removed_by_the_next() {
    let folder = tempfile::tempdir().unwrap();
    let path = |name: &str| folder.path().join(name);
    for name in [".isograd-abc123.tmp", ".isograd-held.tmp", ".isograd-abc123", "other.tmp"] {
        fs::write(path(name), "half of a file").unwrap();
    }
    // As a process holds what it still writes.
    let held = fs::File::open(path(".isograd-held.tmp")).unwrap();
    held.lock().unwrap();
    small(&path("file"));
    let names = || {
        let entries = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap());
        std::collections::BTreeSet::from_iter(entries)
    };
    assert_eq!(names(), [".isograd-abc123", ".isograd-held.tmp", "file", "other.tmp"].map(String::from).into());
    drop(held);
    replace_file(path("file"), &[b"again"]).unwrap();
    assert_eq!(names(), [".isograd-abc123", "file", "other.tmp"].map(String::from).into());
}

#[test]
#[cfg(unix)]
fn what_only_looks_like_a_killed_write_stays() {
    let folder = tempfile::tempdir().unwrap();
    let (aside, other) = (folder.path().join(".isograd-folder.tmp"), folder.path().join("other"));
    fs::create_dir(&aside).unwrap();
    fs::write(&other, "kept").unwrap();
    std::os::unix::fs::symlink(&other, folder.path().join(".isograd-link.tmp")).unwrap();
    small(&folder.path().join("file"));
    assert_eq!(fs::read(&other).unwrap(), b"kept");
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 4);
}

#[test]
fn a_tensor_cannot_have_the_name_of_the_metadata() {
    let folder = tempfile::tempdir().unwrap();
    let state: StateDict = [("__metadata__".to_string(), Tensor::ones(1, DType::F32, &cpu()).unwrap())].into();
    let error = save(folder.path().join("file"), &state, &Metadata::new()).unwrap_err();
    assert_eq!(error.kind(), Kind::Value, "{error}");
    assert!(error.message().contains("__metadata__"), "{error}");
}

#[test]
fn files_that_cannot_be_read_or_written() {
    let folder = tempfile::tempdir().unwrap();
    let state = small(&folder.path().join("file"));
    let missing = folder.path().join("missing");
    assert_eq!(load(&missing, &cpu()).unwrap_err().kind(), Kind::Io);
    assert_eq!(load(folder.path(), &cpu()).unwrap_err().kind(), Kind::Io);
    for path in [missing.join("x"), folder.path().join("file").join("x"), folder.path().to_path_buf()] {
        let error = save(&path, &state, &Metadata::new()).unwrap_err();
        assert_eq!(error.kind(), Kind::Io, "{error}");
        assert_eq!(error.op(), path.display().to_string());
    }
    let names: Vec<_> = fs::read_dir(folder.path()).unwrap().map(|e| e.unwrap().file_name()).collect();
    assert_eq!(names, ["file"]);
}

#[test]
#[cfg(target_os = "linux")]
fn an_unwritable_folder() {
    // Not even root writes here.
    let error = save("/proc/self/model.safetensors", &StateDict::new(), &Metadata::new()).unwrap_err();
    assert_eq!((error.kind(), error.op()), (Kind::Io, "/proc/self/model.safetensors"));
}

#[test]
#[cfg(unix)]
fn a_file_is_readable_as_the_mask_allows() {
    use std::os::unix::fs::PermissionsExt;
    let folder = tempfile::tempdir().unwrap();
    let (ours, plain) = (folder.path().join("ours"), folder.path().join("plain"));
    small(&ours);
    fs::write(&plain, "").unwrap();
    let mode = |p: &Path| fs::metadata(p).unwrap().permissions().mode();
    assert_eq!(mode(&ours), mode(&plain));
}

/// A run with everything that has a state.
struct Run {
    init: Init,
    model: Sequential,
    optimizer: Adam,
    scaler: GradScaler,
    step: u64,
}

impl Run {
    fn new(seed: u64) -> Run {
        let init = Init::new(&cpu()).seed(seed);
        let model = Sequential::new()
            .push(Linear::new(4, 8, &init).unwrap())
            .push(Relu)
            .push(Dropout::new(0.3, &init))
            .push(Linear::new(8, 3, &init).unwrap());
        let optimizer = Adam::new(&model).lr(0.01).amsgrad().clip_norm(1.0);
        let scaler = GradScaler::new(&cpu()).unwrap().growth_interval(3).unwrap();
        Run { init, model, optimizer, scaler, step: 0 }
    }

    /// Steps on data that depend on the step alone.
    fn train(&mut self, steps: u64) -> Result<()> {
        for _ in 0..steps {
            let data = isograd_core::Rng::new(self.step);
            let x = Tensor::randn((16, 4), 0.0, 1.0, DType::F32, &cpu(), &data)?;
            let target = x.narrow(1, 0, 3)?.argmax(1)?;
            self.optimizer.set_lr(0.01 / (1.0 + self.step as f64))?;
            let loss = self.model.forward(&x)?.cross_entropy(&target)?;
            self.scaler.scale(&loss)?.backward()?;
            self.scaler.step(&mut self.optimizer)?;
            self.scaler.update()?;
            self.step += 1;
        }
        Ok(())
    }

    fn checkpoint(&self) -> Checkpoint {
        Checkpoint::new()
            .with_model(&self.model)
            .unwrap()
            .with_optimizer(&self.optimizer)
            .unwrap()
            .with_scaler(&self.scaler)
            .unwrap()
            .with_rng("init", self.init.rng())
            .with("step", self.step)
    }

    fn restore(&mut self, saved: &Checkpoint) -> Result<()> {
        saved.restore_model(&self.model)?;
        saved.restore_optimizer(&mut self.optimizer)?;
        saved.restore_scaler(&mut self.scaler)?;
        saved.restore_rng("init", self.init.rng())?;
        self.step = saved.get("step")?;
        Ok(())
    }
}

#[test]
fn a_kept_checkpoint_stays_when_training_goes_on() {
    let mut run = Run::new(7);
    run.train(3).unwrap();
    let kept = run.checkpoint();
    let before = [&kept.model, &kept.optimizer, &kept.scaler].map(bytes);
    run.train(4).unwrap();
    assert_ne!(bytes(&run.checkpoint().model), before[0]);
    assert_eq!([&kept.model, &kept.optimizer, &kept.scaler].map(bytes), before);
    run.restore(&kept).unwrap();
    assert_eq!(bytes(&run.checkpoint().model), before[0]);
    // And again: what was restored is not what was kept.
    run.train(1).unwrap();
    assert_eq!([&kept.model, &kept.optimizer, &kept.scaler].map(bytes), before);
}

#[test]
fn going_on_is_not_having_stopped_bit_for_bit() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut straight = Run::new(7);
    straight.train(10).unwrap();
    for stop in [0, 1, 6] {
        let mut first = Run::new(7);
        first.train(stop).unwrap();
        first.checkpoint().save(&path).unwrap();
        // Another seed, and some steps: all of it is replaced.
        let mut second = Run::new(8);
        second.train(2).unwrap();
        second.restore(&Checkpoint::load(&path, &cpu()).unwrap()).unwrap();
        second.train(10 - stop).unwrap();
        let (a, b) = (straight.checkpoint(), second.checkpoint());
        assert_eq!(bytes(&a.model), bytes(&b.model), "stopped at {stop}");
        assert_eq!(bytes(&a.optimizer), bytes(&b.optimizer), "stopped at {stop}");
        assert_eq!(bytes(&a.scaler), bytes(&b.scaler), "stopped at {stop}");
        assert_eq!((&a.rngs, &a.texts), (&b.rngs, &b.texts));
    }
}

#[test]
fn checkpoints_say_what_they_lack() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("run.safetensors");
    let mut run = Run::new(1);
    run.checkpoint().with("name", "first run").save(&path).unwrap();
    let saved = Checkpoint::load(&path, &cpu()).unwrap();
    assert_eq!(saved.get::<String>("name").unwrap(), "first run");
    assert!(saved.get::<u64>("name").unwrap_err().message().contains("\"first run\""));
    assert!(saved.get::<u64>("epoch").unwrap_err().message().contains("no value \"epoch\", but [\"name\", \"step\"]"));
    assert!(saved.restore_rng("data", run.init.rng()).unwrap_err().message().contains("[\"init\"]"));
    let before = bytes_of(&run.model);
    let other = Linear::new(4, 8, &run.init).unwrap();
    let error = saved.restore_model(&other).unwrap_err();
    assert!(error.message().contains("weight is missing") && error.message().contains("0.weight is unexpected"));
    let unsaved = Checkpoint::new();
    assert_eq!(unsaved.restore_optimizer(&mut run.optimizer).unwrap_err().kind(), Kind::Value);
    assert_eq!(bytes_of(&run.model), before);
    small(&path);
    let error = Checkpoint::load(&path, &cpu()).unwrap_err();
    assert_eq!((error.kind(), error.op()), (Kind::Format, path.display().to_string().as_str()));
}

fn bytes_of(model: &Sequential) -> Vec<Vec<u8>> {
    model.state_dict().values().map(|t| t.to_bytes().unwrap()).collect()
}

#[test]
fn a_replaced_file_is_the_parts_in_order() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("file");
    for parts in [&[&b"first"[..]][..], &[b"and ", b"", b"second"], &[]] {
        replace_file(&path, parts).unwrap();
        assert_eq!(fs::read(&path).unwrap(), parts.concat());
    }
    assert_eq!(fs::read_dir(folder.path()).unwrap().count(), 1);
}

/// Loads these bytes as tensors and as a checkpoint. An error is one of the format, and names the file.
fn load_bytes(bytes: &[u8]) -> Result<Contents> {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("damaged.safetensors");
    fs::write(&path, bytes).unwrap();
    let loaded = load(&path, &cpu());
    let errors = loaded.as_ref().err().into_iter();
    let checkpoint = Checkpoint::load(&path, &cpu());
    for error in errors.chain(checkpoint.as_ref().err()) {
        assert_eq!((error.kind(), error.op()), (Kind::Format, path.display().to_string().as_str()), "{error}");
    }
    loaded
}

/// A file with an f32 and a tensor of a dtype that this library does not have.
fn foreign(path: &Path) {
    let header = serde_json::json!({
        "a": { "dtype": "F32", "shape": [2], "data_offsets": [0, 8] },
        "b": { "dtype": "F8_E3M4", "shape": [4], "data_offsets": [8, 12] },
    });
    let header = header.to_string();
    fs::write(path, [&(header.len() as u64).to_le_bytes(), header.as_bytes(), &[0; 12]].concat()).unwrap();
}

#[test]
fn tensors_that_are_not_wanted_may_have_any_dtype() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("mixed.safetensors");
    foreign(&path);
    let state = load_part(&path, &cpu(), |name| name == "a").unwrap();
    assert_eq!(state.keys().collect::<Vec<_>>(), ["a"]);
    let error = load_part(&path, &cpu(), |name| name == "b").unwrap_err();
    assert!(error.kind() == Kind::Format && error.to_string().contains("b is F8_E3M4"), "{error}");
    let Contents { tensors, skipped, .. } = load(&path, &cpu()).unwrap();
    assert_eq!((tensors.into_keys().collect::<Vec<_>>(), skipped), (vec!["a".into()], texts(&[("b", "F8_E3M4")])));
    // The checksum counts tensors that are not wanted.
    small(&path);
    assert_eq!(load_part(&path, &cpu(), |name| name == "b").unwrap().len(), 1);
    let mut damaged = fs::read(&path).unwrap();
    *damaged.last_mut().unwrap() ^= 1;
    fs::write(&path, damaged).unwrap();
    assert_eq!(load_part(&path, &cpu(), |name| name == "a").unwrap_err().kind(), Kind::Format);
}

#[test]
fn shards_are_found_by_their_index() {
    let folder = tempfile::tempdir().unwrap();
    let at = |name: &str| folder.path().join(name);
    let error = load_part(folder.path(), &cpu(), |_| true).unwrap_err();
    assert!(error.kind() == Kind::Io && error.to_string().contains("it has none of model.safetensors, "), "{error}");
    small(&at("model-1.safetensors"));
    foreign(&at("model-2.safetensors"));
    let index = |map: serde_json::Value| {
        let text = serde_json::json!({ "metadata": { "total_size": 1 }, "weight_map": map }).to_string();
        fs::write(at("model.safetensors.index.json"), text).unwrap();
    };
    let names = |wanted: &dyn Fn(&str) -> bool| {
        let state = load_part(folder.path(), &cpu(), wanted)?;
        Ok::<_, isograd_core::Error>(state.into_keys().collect::<Vec<_>>())
    };
    let (first, second) = ("model-1.safetensors", "model-2.safetensors");
    index(serde_json::json!({ "a": second, "b": first, "c": "missing.safetensors" }));
    assert_eq!(names(&|name| name < "c").unwrap(), ["a", "b"]);
    assert_eq!(names(&|_| false).unwrap(), [""; 0]);
    let by_index = load_part(at("model.safetensors.index.json"), &cpu(), |name| name == "a").unwrap();
    assert_eq!(values(&by_index["a"]), [0.0, 0.0]);
    assert_eq!(names(&|_| true).unwrap_err().kind(), Kind::Io);
    for (map, part) in [
        (serde_json::json!({ "x": first }), "x is missing, which the index has here"),
        (serde_json::json!({ "a": "../model.safetensors" }), "expected a file of this folder"),
        (serde_json::json!({ "a": "/model.safetensors" }), "expected a file of this folder"),
        (serde_json::json!({ "a": "" }), "expected a file of this folder"),
        (serde_json::json!(["a"]), "not an index of weights"),
    ] {
        index(map);
        let error = names(&|_| true).unwrap_err();
        assert!(error.kind() == Kind::Format && error.to_string().contains(part), "{error}");
    }
    // All of them, without tensors that cannot be read.
    index(serde_json::json!({ "a": first, "b": second }));
    let all = load(folder.path(), &cpu()).unwrap();
    assert_eq!(
        (all.tensors.len(), all.skipped, all.metadata["text"].as_str()),
        (1, texts(&[("b", "F8_E3M4")]), "some")
    );
    assert_eq!(load(at("model.safetensors.index.json"), &cpu()).unwrap().tensors.len(), 1);
    // One file is read before an index.
    small(&at("model.safetensors"));
    assert_eq!(names(&|_| true).unwrap(), ["a", "b"]);
}

proptest! {
    #[test]
    fn damaged_checkpoints_never_panic(
        damage in prop::collection::vec(any::<(prop::sample::Index, u8)>(), 1..6),
        cut in any::<Option<prop::sample::Index>>(),
    ) {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("run.safetensors");
        let mut run = Run::new(3);
        run.train(1).unwrap();
        run.checkpoint().save(&path).unwrap();
        let whole = fs::read(&path).unwrap();
        let mut bytes = whole.clone();
        for (at, to) in damage {
            let at = at.index(bytes.len());
            bytes[at] = to;
        }
        if let Some(cut) = cut {
            bytes.truncate(cut.index(bytes.len()));
        }
        // The data is most of the file, and no damage to it goes unnoticed.
        let data = 8 + u64::from_le_bytes(whole[..8].try_into().unwrap()) as usize;
        let only_data = bytes.len() == whole.len() && bytes[..data] == whole[..data] && bytes != whole;
        prop_assert!(load_bytes(&bytes).is_err() || !only_data);
    }

    #[test]
    fn invented_headers_never_panic(
        dtype in prop::sample::select(vec!["F32", "F64", "BF16", "BOOL", "U16", "F4", "E8M0", "?"]),
        shape in prop::collection::vec(prop::sample::select(vec![0, 1, 2, 3, 1 << 32, 1 << 63, u64::MAX]), 0..5),
        (start, end) in prop::sample::select(vec![(0, 0), (0, 8), (0, 16), (4, 8), (8, 0), (0, u64::MAX), (1 << 63, 9)]),
        excess in prop::sample::select(vec![0u64, 0, 0, 1, u64::MAX]),
    ) {
        let header = serde_json::json!({ "t": { "dtype": dtype, "shape": shape, "data_offsets": [start, end] } });
        let header = header.to_string();
        // The length that the file gives for its header is right, or a little or much too large.
        let length = (header.len() as u64).saturating_add(excess);
        let data = vec![1; end.min(16) as usize];
        let bytes = [&length.to_le_bytes(), header.as_bytes(), &data].concat();
        if let Ok(loaded) = load_bytes(&bytes) {
            let Some(t) = loaded.tensors.get("t") else {
                prop_assert_eq!(&loaded.skipped["t"], dtype);
                return Ok(());
            };
            let size = if dtype == "U16" { 2 } else { t.dtype().size() };
            prop_assert_eq!((t.numel() * size) as u64, end - start);
        }
    }
}
