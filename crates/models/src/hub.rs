//! Folders of Hugging Face's `transformers`: options in `config.json`, and weights by name in safetensors files.

use isograd_core::{DType, Error, Result, Shape, Tensor, replace_file};
use isograd_nn::{Init, LoadFloats, LoadNames, LoadOptions, Metadata, Module, StateDict, load_part, save, shapes};
use serde_json::{Map, Value};
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Display;
use std::path::{Path, PathBuf};

/// The options of a network in its folder.
pub(crate) struct Config {
    path: PathBuf,
    values: Map<String, Value>,
}

impl Config {
    /// Reads `config.json` of a folder. Errors: `Io`; `Format` for a network of none of these kinds.
    pub(crate) fn read(folder: &Path, kinds: &[&str]) -> Result<Config> {
        let path = folder.join("config.json");
        let bytes = isograd_files::read(&path)?;
        let values = serde_json::from_slice(&bytes).map_err(|e| invalid(&path, format!("not a configuration: {e}")))?;
        let config = Config { path, values };
        config.expect_one("model_type", kinds)?;
        Ok(config)
    }

    /// A value that is not null.
    pub(crate) fn get(&self, key: &str) -> Option<&Value> {
        self.values.get(key).filter(|value| !value.is_null())
    }

    /// A number that must be there. Errors: `Format`.
    pub(crate) fn count(&self, key: &str) -> Result<usize> {
        self.count_or(key, None)?.ok_or_else(|| invalid(&self.path, format!("{key} is missing")))
    }

    /// A number, or another if it is absent. Errors: `Format` if it is not a number.
    pub(crate) fn count_or(&self, key: &str, other: Option<usize>) -> Result<Option<usize>> {
        let Some(value) = self.get(key) else { return Ok(other) };
        // Products of two such numbers are numbers too.
        let number = value.as_u64().and_then(|n| i32::try_from(n).ok());
        number.map(|n| Some(n as usize)).ok_or_else(|| self.wrong(key, value, "a whole number of 31 bits"))
    }

    /// A number, or another if it is absent. Errors: `Format` if it is not a number.
    pub(crate) fn float_or(&self, key: &str, other: f64) -> Result<f64> {
        let Some(value) = self.get(key) else { return Ok(other) };
        value.as_f64().ok_or_else(|| self.wrong(key, value, "a number"))
    }

    /// A number above 0, or another if it is absent. Errors: `Format` if it is none.
    pub(crate) fn positive_or(&self, key: &str, other: f64) -> Result<f64> {
        match (self.get(key), self.float_or(key, other)?) {
            (Some(value), v) if v.is_nan() || v <= 0.0 => Err(self.wrong(key, value, "a number above 0")),
            (_, v) => Ok(v),
        }
    }

    /// Numbers that must be there. Errors: `Format`.
    pub(crate) fn floats(&self, key: &str) -> Result<Vec<f64>> {
        let value = self.get(key).unwrap_or(&Value::Null);
        let all = value.as_array().and_then(|all| all.iter().map(Value::as_f64).collect());
        all.ok_or_else(|| self.wrong(key, value, "a list of numbers"))
    }

    /// The keys of values that are not null.
    pub(crate) fn keys(&self) -> impl Iterator<Item = &str> {
        self.values.iter().filter(|(_, value)| !value.is_null()).map(|(key, _)| key.as_str())
    }

    /// A truth value, or another if it is absent. Errors: `Format` if it is none.
    pub(crate) fn flag_or(&self, key: &str, other: bool) -> Result<bool> {
        let Some(value) = self.get(key) else { return Ok(other) };
        value.as_bool().ok_or_else(|| self.wrong(key, value, "true or false"))
    }

    /// An object within this one. Errors: `Format` if it is none.
    pub(crate) fn part(&self, key: &str) -> Result<Option<Config>> {
        let Some(value) = self.get(key) else { return Ok(None) };
        let values = value.as_object().cloned().ok_or_else(|| self.wrong(key, value, "an object"))?;
        Ok(Some(Config { path: self.path.clone(), values }))
    }

    /// [`part`](Config::part), or none for another value.
    pub(crate) fn part_or_none(&self, key: &str) -> Option<Config> {
        self.part(key).ok().flatten()
    }

    /// The number of values.
    pub(crate) fn len(&self) -> usize {
        self.values.len()
    }

    /// Errors: `Format` if the value is there and differs.
    pub(crate) fn expect(&self, key: &str, expected: impl Into<Value> + Clone) -> Result<()> {
        self.expect_one(key, &[expected])
    }

    /// Errors: `Format` if the value is there and is none of these.
    pub(crate) fn expect_one<T: Into<Value> + Clone>(&self, key: &str, expected: &[T]) -> Result<()> {
        let expected: Vec<Value> = expected.iter().cloned().map(Into::into).collect();
        match self.get(key) {
            Some(value) if !expected.contains(value) => {
                let all: Vec<String> = expected.iter().map(Value::to_string).collect();
                Err(self.wrong(key, value, all.join(" or ")))
            }
            _ => Ok(()),
        }
    }

    /// The error of a value.
    pub(crate) fn wrong(&self, key: &str, value: &Value, expected: impl Display) -> Error {
        invalid(&self.path, format!("{key} is {value}, expected {expected}"))
    }
}

fn invalid(path: &Path, why: String) -> Error {
    Error::format(path.display().to_string(), why)
}

/// A network of Hugging Face's `transformers`, with the names and shapes of its class there. A folder has its options in `config.json`, and
/// its weights by name in safetensors files.
pub trait Pretrained: Module + Sized {
    /// Extents and constants.
    type Options;
    /// The beginning of the names of parameters that files of the network without its last layer lack.
    const PREFIX: &'static str = "";

    /// Extents and constants.
    fn options(&self) -> Self::Options;

    /// The text of `config.json`.
    fn config(&self) -> String;

    /// The options of a folder. Errors: `Io`; `Format` for another network.
    fn read(folder: &Path) -> Result<Self::Options>;

    /// A network with initial weights.
    fn begin(options: &Self::Options, init: &Init) -> Result<Self>;

    /// The options for a file with tensors of these shapes, where these say more.
    fn fit(options: Self::Options, _shapes: &BTreeMap<String, Shape>) -> Self::Options {
        options
    }

    /// The parameter that is two in files: the name there of the other one, and its name here. A file may have either, or both with the same
    /// values.
    fn tied(&self) -> Option<[&'static str; 2]> {
        None
    }

    /// The full name for a name in a file, which may lack the prefix.
    fn name_of(name: &str) -> String {
        prefixed::<Self>(name)
    }

    /// Where folders have a parameter; as a tensor of its name in most networks.
    fn source(&self, own: &str) -> Source {
        Source::Whole(own.to_string())
    }

    /// Where the file or folder `path` has a parameter. Errors: `Io`.
    fn source_in(&self, own: &str, _path: &Path) -> Result<Source> {
        Ok(self.source(own))
    }

    /// A network with options and weights of a folder that `transformers` or [`save`](Pretrained::save) wrote, on the device and in the
    /// dtype of `init`. Errors: those of reading the options; as [`load_weights`](Pretrained::load_weights).
    fn load(folder: impl AsRef<Path>, init: &Init) -> Result<Self> {
        let folder = folder.as_ref();
        let options = Self::read(folder)?;
        // Options may say anything, and parameters that the files do not have are not made.
        let shapes = shapes(folder)?;
        let model = Self::begin(&Self::fit(options, &shapes), &init.clone().loading(shapes.values()))?;
        model.load_weights(folder)?;
        Ok(model)
    }

    /// Loads weights by name, of any float dtype, from a safetensors file, from several by their index, or from a folder with either.
    /// Tensors of other names are not read. Quantised weights stay as they are. Errors: as [`load_part`]; `Value` if a parameter is missing or has another shape, or if a file
    /// has two tensors for one, of other values where both are allowed; then nothing has changed.
    fn load_weights(&self, path: impl AsRef<Path>) -> Result<()> {
        let (mut own, path) = (self.state_dict(), path.as_ref());
        let all = own.len();
        own.retain(|_, t| !is_packed(t));
        let packed = all - own.len();
        let Some(device) = own.values().next().map(|t| t.device().clone()) else { return Ok(()) };
        let mut state = StateDict::new();
        let tied = self.tied();
        let sources = own.keys().map(|name| Ok((name, self.source_in(name, path)?)));
        let sources = sources.collect::<Result<BTreeMap<_, _>>>()?;
        let wanted = sources.values().flat_map(Source::names).collect::<BTreeSet<_>>();
        let is_other = |name: &str| tied.is_some_and(|[other, _]| name == other);
        let mut found = load_part(path, &device, |name| is_other(name) || wanted.contains(&*Self::name_of(name)))?;
        let other = tied.and_then(|[other, own]| Some((found.remove(other)?, other, own)));
        for (name, t) in found {
            let renamed = Self::name_of(&name);
            if state.insert(renamed.clone(), t).is_some() {
                let message = format!("several tensors are {renamed}; one of them is called {name}");
                return Err(Error::value(path.display().to_string(), message));
            }
        }
        if let Some((t, other, own)) = other {
            let first = state.entry(own.to_string()).or_insert_with(|| t.clone());
            if first.key() != t.key() && !(first.dtype() == t.dtype() && first.to_bytes()? == t.to_bytes()?) {
                let message = format!("{other} and {own} differ, which are one parameter of this network");
                return Err(Error::value(path.display().to_string(), message));
            }
        }
        let mut parameters = StateDict::new();
        for (name, source) in &sources {
            let found = source.find(&state, own[*name].shape());
            let found = found.map_err(|e| Error::new(e.kind(), path.display().to_string(), e.message()))?;
            parameters.extend(found.map(|t| ((*name).clone(), t)));
        }
        let is_whole = packed > 0 && parameters.len() == own.len();
        let names = if is_whole { LoadNames::Shared } else { LoadNames::Same };
        let options = LoadOptions { floats: LoadFloats::Cast, names };
        let result = self.load_state_dict_with(&parameters, &options);
        result.map(drop).map_err(|e| Error::new(e.kind(), path.display().to_string(), e.message()))
    }

    /// Writes `model.safetensors` and `config.json` to a folder, which is made if it is not there, as `from_pretrained` of the class in
    /// `transformers` and [`load`](Pretrained::load) read them. Errors: `Io`; `Unsupported` naming a weight that is quantised, which these files do not
    /// have.
    fn save(&self, folder: impl AsRef<Path>) -> Result<()> {
        let folder = folder.as_ref();
        if let Some((name, _)) = self.state_dict().iter().find(|(_, t)| is_packed(t)) {
            let message = format!("{name} is quantised, expected floats: load the network without quantised weights");
            return Err(Error::unsupported("save", message));
        }
        std::fs::create_dir_all(folder).map_err(|e| Error::io(folder, "making the folder", e))?;
        let metadata = Metadata::from([("format".to_string(), "pt".to_string())]);
        let own = self.state_dict();
        let own = own.into_iter().map(|(name, t)| (self.source(&name), t));
        save(folder.join("model.safetensors"), &in_files(own)?, &metadata)?;
        replace_file(folder.join("config.json"), &[self.config().as_bytes()])
    }
}

/// Where files have a parameter.
#[derive(Clone, Debug, PartialEq)]
pub enum Source {
    /// As a tensor of this name.
    Whole(String),
    /// As rows of a tensor.
    Rows {
        /// The name of the tensor.
        name: String,
        /// The first row.
        start: usize,
    },
    /// As rows of a tensor that has several parts for each head, one after the other.
    Heads {
        /// The name of the tensor.
        name: String,
        /// The number of heads.
        heads: usize,
        /// Which part of a head's rows it is.
        part: usize,
        /// The number of parts.
        parts: usize,
    },
    /// As a tensor for each element of the first dimension.
    Each(Vec<String>),
    /// As rows of heads, in which the elements of a pair that is rotated are neighbours instead of half a head apart.
    Neighbors {
        /// The name of the tensor.
        name: String,
        /// The number of heads.
        heads: usize,
    },
    /// As a tensor whose elements are larger by a number.
    More {
        /// The name of the tensor.
        name: String,
        /// The number.
        by: f64,
    },
}

impl Source {
    /// The names of the tensors.
    pub(crate) fn names(&self) -> Vec<&str> {
        match self {
            Source::Whole(name) | Source::Rows { name, .. } | Source::Heads { name, .. } => vec![name],
            Source::Neighbors { name, .. } | Source::More { name, .. } => vec![name],
            Source::Each(names) => names.iter().map(String::as_str).collect(),
        }
    }

    /// The tensor of a parameter of this shape, if the file has its parts. Errors: `Shape` for parts that do not fit.
    fn find(&self, file: &StateDict, shape: &Shape) -> Result<Option<Tensor>> {
        let Some(all) = self.names().into_iter().map(|name| file.get(name)).collect::<Option<Vec<_>>>() else {
            return Ok(None);
        };
        let rows = || shape.dims().first().copied().unwrap_or(1);
        let part = match *self {
            Source::Whole(_) => Ok(all[0].clone()),
            Source::Rows { start, .. } => all[0].narrow(0, start, rows()),
            Source::Heads { heads, part, parts, .. } => {
                let of_head = all[0].dims().iter().product::<usize>() / (heads * parts).max(1);
                let of_heads = all[0].reshape((heads, parts, of_head)).and_then(|t| t.select(1, part as isize));
                of_heads.and_then(|t| t.contiguous()?.reshape(shape))
            }
            Source::Each(_) => Tensor::stack(&all, 0),
            Source::Neighbors { heads, .. } => {
                let pairs = all[0].reshape((heads, rows() / (2 * heads).max(1), 2, all[0].numel() / rows().max(1)));
                pairs.and_then(|t| t.transpose(1, 2)?.contiguous()?.reshape(shape))
            }
            Source::More { by, .. } => all[0].sub_scalar(by),
        };
        let name = self.names()[0];
        part.map(Some).map_err(|e| {
            let message =
                format!("{name} is {}, which does not fit a parameter {shape}: {}", all[0].shape(), e.message());
            Error::shape("load", message)
        })
    }
}

/// True for the blocks of a quantised weight: networks have no other tensors of bytes.
fn is_packed(t: &Tensor) -> bool {
    t.dtype() == DType::U8
}

/// The tensors of files with these parameters.
fn in_files(own: impl Iterator<Item = (Source, Tensor)>) -> Result<StateDict> {
    let (mut found, mut parts) = (StateDict::new(), BTreeMap::<String, BTreeMap<usize, Tensor>>::new());
    let mut heads_of = BTreeMap::new();
    for (source, t) in own {
        match source {
            Source::Whole(name) => drop(found.insert(name, t)),
            Source::More { name, by } => drop(found.insert(name, t.detach().add_scalar(by)?)),
            Source::Neighbors { name, heads } => {
                let halves =
                    t.detach().reshape((heads, 2, t.dims()[0] / (2 * heads).max(1), t.numel() / t.dims()[0].max(1)))?;
                found.insert(name, halves.transpose(1, 2)?.contiguous()?.reshape(t.shape())?);
            }
            Source::Rows { name, start } => drop(parts.entry(name).or_default().insert(start, t)),
            Source::Heads { name, heads, part, .. } => {
                parts.entry(name.clone()).or_default().insert(part, t);
                heads_of.insert(name, heads);
            }
            Source::Each(names) => {
                for (i, name) in names.into_iter().enumerate() {
                    found.insert(name, t.detach().select(0, i as isize)?.contiguous()?);
                }
            }
        }
    }
    for (name, parts) in parts {
        let parts = parts.into_values().map(|t| t.detach()).collect::<Vec<_>>();
        let whole = match heads_of.get(&name) {
            None => Tensor::concat(&parts.iter().collect::<Vec<_>>(), 0)?,
            Some(&heads) => {
                let rest = parts[0].dims()[1..].to_vec();
                let of_heads =
                    parts.iter().map(|t| t.reshape((heads, t.numel() / heads.max(1)))).collect::<Result<Vec<_>>>()?;
                let shape = Shape::from([vec![parts.len() * parts[0].dims()[0]], rest].concat());
                Tensor::stack(&of_heads.iter().collect::<Vec<_>>(), 1)?.reshape(shape)?
            }
        };
        found.insert(name, whole);
    }
    Ok(found)
}

/// A name with the prefix of a network.
pub(crate) fn prefixed<M: Pretrained>(name: &str) -> String {
    if name.starts_with(M::PREFIX) { name.to_string() } else { format!("{}{name}", M::PREFIX) }
}

/// Options as the text of `config.json`.
pub(crate) fn text(config: &Value) -> String {
    format!("{config:#}\n")
}
