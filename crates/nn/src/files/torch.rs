//! Files of `torch.save`: a zip archive with a pickle, which describes views, and a file for each storage.

use super::pickle::{self, Pickle, Storage, Value, View};
use super::safetensors::{Contents, Metadata, Wanted};
use crate::StateDict;
use isograd_core::{Device, Error, Kind, Result, Shape, Tensor};
use isograd_files::{Archive, Budget, Checked, Order, Stored, looks_like};
use std::collections::{BTreeMap, HashMap};

/// The keys under which programs keep the weights of a network in a checkpoint.
const WEIGHTS: [&str; 3] = ["state_dict", "model_state_dict", "model"];

/// The bytes of an entry beside its texts.
const ENTRY: usize = 32;

/// Containers within each other, beyond which a file is refused.
const MAX_DEPTH: usize = 64;

/// The description of the tensors of a file.
struct Described<'a> {
    archive: Archive<'a>,
    folder: String,
    pickle: Pickle<'a>,
    names: Names,
}

fn described(bytes: &[u8]) -> Checked<Described<'_>> {
    let mut archive = Archive::open(bytes)?;
    let folder = folder(bytes, &archive)?;
    if let Ok(order) = archive.stored(&format!("{folder}/byteorder"))
        && order != b"little"
    {
        return Err("it was written by a machine of another order of bytes; save it on one of this order".into());
    }
    let bytes_of_pickle = archive.stored(&format!("{folder}/data.pkl"))?;
    let mut budget = Budget::new(bytes_of_pickle.len());
    let pickle = pickle::read(bytes_of_pickle, &mut budget)?;
    let names = Names::of(&pickle, budget)?;
    Ok(Described { archive, folder, pickle, names })
}

/// The names and shapes of the tensors. A dimension that repeats one element counts once.
pub(crate) fn shapes(bytes: &[u8]) -> Checked<BTreeMap<String, Shape>> {
    let Described { pickle, names, .. } = described(bytes)?;
    let shape = |index: usize| Shape::from(once(&pickle.views[index]));
    Ok(names.tensors.into_iter().map(|(name, index)| (name, shape(index))).collect())
}

/// The extents of a view, of which those with the stride 0 are those of one element.
fn once(view: &View<'_>) -> Vec<usize> {
    view.shape.iter().zip(&view.strides).map(|(&d, &s)| if s == 0 { d.min(1) } else { d }).collect()
}

/// Reads the tensors for which `wanted` is true.
pub(crate) fn parse(bytes: &[u8], device: &Device, wanted: &Wanted<'_>) -> Result<Contents> {
    let Described { archive, folder, pickle, names } = described(bytes).map_err(invalid)?;
    let mut reader =
        Reader { archive, folder, pickle: &pickle, device, storages: HashMap::new(), left: 2 * bytes.len() };
    let mut known: HashMap<_, Tensor> = HashMap::new();
    let (mut tensors, mut skipped) = (StateDict::new(), BTreeMap::new());
    for (name, index) in names.tensors {
        if !wanted.has(&name) {
            continue;
        }
        let view = &pickle.views[index];
        let Some(stored) = stored(view.dtype) else {
            wanted.skip(&name, view.dtype)?;
            skipped.insert(name, view.dtype.to_string());
            continue;
        };
        // Tied weights are views of one storage.
        let View { storage, dtype, offset, shape, strides } = view;
        let key = (pickle.storages[*storage].key, dtype, offset, shape, strides);
        let tensor = match known.get(&key) {
            Some(tensor) => tensor.clone(),
            None => reader.tensor(&name, view, stored)?,
        };
        known.insert(key, tensor.clone());
        tensors.insert(name, tensor);
    }
    Ok(Contents { tensors, metadata: names.texts, skipped })
}

fn invalid(why: impl Into<String>) -> Error {
    Error::format("load", why)
}

/// The folder of the archive that has everything.
fn folder(bytes: &[u8], archive: &Archive<'_>) -> Checked<String> {
    let names = archive.names()?;
    let Some(folder) = names.iter().find_map(|name| name.strip_suffix("/data.pkl")).filter(|name| !name.contains('/'))
    else {
        return Err(match names.iter().any(|name| name.ends_with(".npy")) {
            true => "it looks like arrays of NumPy in an .npz file, which isograd::data::npy reads".into(),
            false => format!("no file of torch.save: {}", looks_like(bytes).unwrap_or_default()),
        });
    };
    match names.iter().any(|name| *name == format!("{folder}/constants.pkl")) {
        true => Err("it looks like a TorchScript program; in Python: \
                     torch.save(torch.jit.load(path).state_dict(), \"weights.pt\")"
            .into()),
        false => Ok(folder.to_string()),
    }
}

/// The type of elements by PyTorch's name of a dtype.
fn stored(dtype: &str) -> Option<Stored> {
    Stored::named(match dtype {
        "float64" => "F64",
        "float32" => "F32",
        "float16" => "F16",
        "bfloat16" => "BF16",
        "int64" => "I64",
        "int32" => "I32",
        "int16" => "I16",
        "int8" => "I8",
        "uint8" => "U8",
        "uint16" => "U16",
        "uint32" => "U32",
        "uint64" => "U64",
        "bool" => "BOOL",
        "float8_e4m3fn" => "F8_E4M3",
        "float8_e5m2" => "F8_E5M2",
        "float8_e4m3fnuz" => "F8_E4M3FNUZ",
        "float8_e5m2fnuz" => "F8_E5M2FNUZ",
        "float8_e8m0fnu" => "F8_E8M0",
        _ => return None,
    })
}

/// The tensors of a pickle by name, and the numbers and texts of its outermost dictionary.
struct Names {
    tensors: BTreeMap<String, usize>,
    texts: Metadata,
    /// Dictionaries may be within each other several times, and a text may be a value several times.
    budget: Budget,
}

impl Names {
    fn of(pickle: &Pickle<'_>, budget: Budget) -> Checked<Names> {
        let Value::Dict(outer) = pickle.root else {
            let found = if let Value::Tensor(_) = pickle.root { "one tensor" } else { "no dictionary" };
            return Err(format!("it holds {found}, expected a dictionary of tensors, as model.state_dict() is"));
        };
        let mut names = Names { tensors: BTreeMap::new(), texts: Metadata::new(), budget };
        let entries = || pickle.dicts[outer].chunks_exact(2).map(|entry| (entry[0], entry[1]));
        let weights: Vec<Value<'_>> = entries()
            .filter(|(key, value)| {
                matches!(key, Value::Text(key) if WEIGHTS.contains(key)) && matches!(value, Value::Dict(_))
            })
            .map(|(_, value)| value)
            .collect();
        let has_tensors = entries().any(|(_, value)| matches!(value, Value::Tensor(_)));
        match weights[..] {
            // A checkpoint, of which the rest is of no use to a network.
            [weights] if !has_tensors => names.collect(pickle, weights, "", 0)?,
            _ => names.collect(pickle, pickle.root, "", 0)?,
        }
        for (key, value) in entries() {
            let text = match value {
                Value::Bool(v) => v.to_string(),
                Value::Int(v) => v.to_string(),
                Value::Float(v) => v.to_string(),
                Value::Text(v) => v.to_string(),
                _ => continue,
            };
            let key = key_of(key)?;
            names.budget.spend(key.len() + text.len() + ENTRY, 1)?;
            names.texts.insert(key, text);
        }
        Ok(names)
    }

    fn add(&mut self, name: &str, index: usize) -> Checked<()> {
        match self.tensors.insert(name.to_string(), index) {
            Some(_) => Err(format!("two of its tensors are called {name}")),
            None => Ok(()),
        }
    }

    fn collect(&mut self, pickle: &Pickle<'_>, value: Value<'_>, name: &str, depth: usize) -> Checked<()> {
        if depth > MAX_DEPTH {
            return Err(format!("it has more than {MAX_DEPTH} containers within each other"));
        }
        let inner = |key: &str| if name.is_empty() { key.to_string() } else { format!("{name}.{key}") };
        match value {
            Value::Tensor(index) => self.add(name, index)?,
            Value::Dict(dict) => {
                for entry in pickle.dicts[dict].chunks_exact(2) {
                    let name = inner(&key_of(entry[0])?);
                    self.budget.spend(name.len() + ENTRY, 1)?;
                    self.collect(pickle, entry[1], &name, depth + 1)?;
                }
            }
            Value::List(list) => {
                for (i, &item) in pickle.lists[list].iter().enumerate() {
                    let name = inner(&i.to_string());
                    self.budget.spend(name.len() + ENTRY, 1)?;
                    self.collect(pickle, item, &name, depth + 1)?;
                }
            }
            _ => {}
        }
        Ok(())
    }
}

fn key_of(key: Value<'_>) -> Checked<String> {
    match key {
        Value::Text(text) => Ok(text.to_string()),
        Value::Int(number) => Ok(number.to_string()),
        _ => Err("a dictionary has a key that is neither a text nor a number".into()),
    }
}

/// Reads views of storages.
struct Reader<'a, 'b> {
    archive: Archive<'a>,
    folder: String,
    pickle: &'b Pickle<'a>,
    device: &'b Device,
    /// Storages whose checksum is checked.
    storages: HashMap<&'a str, &'a [u8]>,
    /// The bytes that tensors may still have: views of one storage may overlap.
    left: usize,
}

impl<'a> Reader<'a, '_> {
    fn tensor(&mut self, name: &str, view: &View<'a>, stored: Stored) -> Result<Tensor> {
        let of = |why: String| invalid(format!("{name}: {why}"));
        let bytes = self.storage(self.pickle.storages[view.storage], stored).map_err(of)?;
        // A view of the tensor repeats its elements.
        let once = once(view);
        let elements = gather(bytes, view, &once, stored.size(), &mut self.left).map_err(of)?;
        let native = stored.read(&elements, Order::Little).map_err(of)?;
        let t = Tensor::from_bytes(&native, once, stored.dtype(), self.device);
        let t = t.and_then(|t| if t.dims() == view.shape { Ok(t) } else { t.expand(view.shape.clone()) });
        t.map_err(|e| if e.kind() == Kind::Shape { of(e.message().to_string()) } else { e })
    }

    /// The bytes of a storage.
    fn storage(&mut self, storage: Storage<'a>, stored: Stored) -> Checked<&'a [u8]> {
        let size = if storage.dtype.is_some() { stored.size() } else { 1 };
        let bytes = match self.storages.get(storage.key) {
            Some(bytes) => bytes,
            None => self.archive.stored(&format!("{}/data/{}", self.folder, storage.key))?,
        };
        self.storages.insert(storage.key, bytes);
        match storage.count.checked_mul(size) {
            Some(expected) if expected == bytes.len() => Ok(bytes),
            _ => Err(format!("its storage has {} bytes, expected {} elements of {size}", bytes.len(), storage.count)),
        }
    }
}

/// The elements of a view in row-major order; extents are in `shape`.
fn gather<'a>(
    storage: &'a [u8],
    view: &View<'_>,
    shape: &[usize],
    size: usize,
    left: &mut usize,
) -> Checked<std::borrow::Cow<'a, [u8]>> {
    let count = shape.iter().try_fold(1usize, |n, &d| n.checked_mul(d)).ok_or("its shape is too large")?;
    if count == 0 {
        return Ok((&[][..]).into());
    }
    let outside = || format!("its elements are outside of its storage of {} bytes", storage.len());
    let reach = shape
        .iter()
        .zip(&view.strides)
        .try_fold(view.offset, |at, (&d, &stride)| at.checked_add((d - 1).checked_mul(stride)?));
    if reach.is_none_or(|last| last >= storage.len() / size) {
        return Err(outside());
    }
    *left = count.checked_mul(size).and_then(|bytes| left.checked_sub(bytes)).ok_or("its tensors overlap too often")?;
    // The steps of axes with more than one element; neighbours whose elements follow each other are one axis.
    let mut axes: Vec<(usize, usize)> = Vec::new();
    for (&extent, &stride) in shape.iter().zip(&view.strides).filter(|(extent, _)| **extent > 1) {
        match axes.last_mut() {
            Some((outer, step)) if *step == extent * stride => (*outer, *step) = (*outer * extent, stride),
            _ => axes.push((extent, stride)),
        }
    }
    // Elements that follow each other are copied together.
    let run = match axes.last() {
        Some(&(extent, 1)) => {
            axes.pop();
            extent
        }
        _ => 1,
    };
    let at = |element: usize| &storage[element * size..(element + run) * size];
    if axes.is_empty() {
        return Ok(at(view.offset).into());
    }
    let mut elements = Vec::with_capacity(count * size);
    let mut index = vec![0; axes.len()];
    let mut element = view.offset;
    loop {
        elements.extend_from_slice(at(element));
        let mut axis = axes.len();
        loop {
            if axis == 0 {
                return Ok(elements.into());
            }
            axis -= 1;
            let (extent, stride) = axes[axis];
            index[axis] += 1;
            element += stride;
            if index[axis] < extent {
                break;
            }
            element -= extent * stride;
            index[axis] = 0;
        }
    }
}
