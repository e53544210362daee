//! Pickles of Python, as far as files of tensors need them. Nothing is run: a pickle is read as data, and the functions that it may name
//! are those that put tensors together.
//!
//! Source of the format: `pickletools` of Python, protocols 2 to 5; of tensors in it: `torch._utils` and `torch.serialization`.

use isograd_files::{Budget, Checked};
use std::collections::HashMap;
use std::ops::Range;

/// A value. Containers and tensors are numbers of places in [`Pickle`], so that a value which occurs twice is there once.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Value<'a> {
    None,
    Bool(bool),
    Int(i64),
    Float(f64),
    Text(&'a str),
    /// Bytes, and integers beyond i64, which no tensor needs.
    Other,
    Global(Global<'a>),
    /// A list or a tuple.
    List(usize),
    /// Keys and values in turn.
    Dict(usize),
    Storage(usize),
    Tensor(usize),
}

/// A function or a class that a pickle names.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) enum Global<'a> {
    OrderedDict,
    /// A tuple of extents.
    Size,
    RebuildTensor,
    /// With a dtype, for those without a class of storages.
    RebuildTyped,
    RebuildParameter,
    /// A class of storages, by the dtype of its elements; none for bytes.
    Storage(Option<&'a str>),
    Dtype(&'a str),
}

/// Elements in a file of the archive.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(crate) struct Storage<'a> {
    pub key: &'a str,
    /// The dtype by PyTorch's name; none for bytes.
    pub dtype: Option<&'a str>,
    /// The number of elements, or of bytes.
    pub count: usize,
}

/// A view of a storage.
#[derive(Clone, Debug, PartialEq)]
pub(crate) struct View<'a> {
    pub storage: usize,
    /// The dtype by PyTorch's name.
    pub dtype: &'a str,
    /// All in elements.
    pub offset: usize,
    pub shape: Vec<usize>,
    pub strides: Vec<usize>,
}

/// The content of a pickle.
#[derive(Debug)]
pub(crate) struct Pickle<'a> {
    pub root: Value<'a>,
    pub lists: Vec<Vec<Value<'a>>>,
    pub dicts: Vec<Vec<Value<'a>>>,
    pub storages: Vec<Storage<'a>>,
    pub views: Vec<View<'a>>,
}

/// Classes of storages, and the dtypes of their elements.
const STORAGES: &[(&str, &str)] = &[
    ("DoubleStorage", "float64"),
    ("FloatStorage", "float32"),
    ("HalfStorage", "float16"),
    ("BFloat16Storage", "bfloat16"),
    ("LongStorage", "int64"),
    ("IntStorage", "int32"),
    ("ShortStorage", "int16"),
    ("CharStorage", "int8"),
    ("ByteStorage", "uint8"),
    ("BoolStorage", "bool"),
    ("ComplexDoubleStorage", "complex128"),
    ("ComplexFloatStorage", "complex64"),
];

/// The dtypes that have no class of storages, and those that have one.
fn is_dtype(name: &str) -> bool {
    let others = ["uint16", "uint32", "uint64", "complex32"];
    STORAGES.iter().any(|(_, dtype)| *dtype == name) || others.contains(&name) || name.starts_with("float8_")
}

impl<'a> Global<'a> {
    /// Errors: any other name. It is not called, whatever it may be.
    fn named(module: &'a str, name: &'a str) -> Checked<Global<'a>> {
        let storage = |name: &str| STORAGES.iter().find(|(class, _)| *class == name).map(|(_, dtype)| *dtype);
        Ok(match (module, name) {
            ("collections", "OrderedDict") => Global::OrderedDict,
            ("torch", "Size") => Global::Size,
            ("torch._utils", "_rebuild_tensor_v2") => Global::RebuildTensor,
            ("torch._utils", "_rebuild_tensor_v3") => Global::RebuildTyped,
            ("torch._utils", "_rebuild_parameter") => Global::RebuildParameter,
            ("torch.storage", "UntypedStorage") => Global::Storage(None),
            ("torch", class) if storage(class).is_some() => Global::Storage(storage(class)),
            ("torch", dtype) if is_dtype(dtype) => Global::Dtype(dtype),
            _ => {
                return Err(format!(
                    "it needs {module}.{name} of a Python program, which is not run; save the tensors alone: \
                     torch.save(model.state_dict(), path)"
                ));
            }
        })
    }
}

/// Reads a pickle. Errors: one that is damaged, one that holds other than tensors, containers, numbers and texts, and one whose shapes
/// exceed the budget.
pub(crate) fn read<'a>(bytes: &'a [u8], budget: &mut Budget) -> Checked<Pickle<'a>> {
    let mut machine = Machine {
        bytes,
        budget,
        at: 0,
        stack: Vec::new(),
        marks: Vec::new(),
        memo: HashMap::new(),
        content: Pickle {
            root: Value::None,
            lists: Vec::new(),
            dicts: Vec::new(),
            storages: Vec::new(),
            views: Vec::new(),
        },
    };
    while machine.step()? {}
    match (machine.stack.as_slice(), machine.marks.as_slice()) {
        ([root], []) => Ok(Pickle { root: *root, ..machine.content }),
        _ => Err(DAMAGED.into()),
    }
}

const DAMAGED: &str = "its pickle is damaged";

/// A pickle is a program for a machine with a stack and numbered places.
struct Machine<'a, 'b> {
    bytes: &'a [u8],
    budget: &'b mut Budget,
    at: usize,
    stack: Vec<Value<'a>>,
    /// The heights of the stack at marks.
    marks: Vec<usize>,
    memo: HashMap<u32, Value<'a>>,
    content: Pickle<'a>,
}

impl<'a> Machine<'a, '_> {
    /// Runs an instruction. False for the last.
    fn step(&mut self) -> Checked<bool> {
        match self.take::<1>()?[0] {
            // PROTO, FRAME: nothing depends on them.
            0x80 => drop(self.take::<1>()?),
            0x95 => drop(self.take::<8>()?),
            b'.' => return Ok(false),
            b'(' => self.marks.push(self.stack.len()),
            b'0' => drop(self.pop()?),
            // Values.
            b'N' => self.stack.push(Value::None),
            0x88 => self.stack.push(Value::Bool(true)),
            0x89 => self.stack.push(Value::Bool(false)),
            b'J' => {
                let v = i32::from_le_bytes(self.take()?);
                self.stack.push(Value::Int(v.into()));
            }
            b'K' => {
                let v = self.length::<1>()?;
                self.stack.push(Value::Int(v as i64));
            }
            b'M' => {
                let v = self.length::<2>()?;
                self.stack.push(Value::Int(v as i64));
            }
            0x8a => {
                let digits = self.bytes_of::<1>()?;
                self.stack.push(long(digits));
            }
            b'G' => {
                let v = f64::from_be_bytes(self.take()?);
                self.stack.push(Value::Float(v));
            }
            0x8c => self.text::<1>()?,
            b'X' => self.text::<4>()?,
            0x8d => self.text::<8>()?,
            // Texts of Python 2 are bytes.
            b'U' => self.text::<1>()?,
            b'T' => self.text::<4>()?,
            b'C' => self.other::<1>()?,
            b'B' => self.other::<4>()?,
            0x8e => self.other::<8>()?,
            // Containers.
            b']' => self.push_list(Vec::new()),
            b')' => self.push_list(Vec::new()),
            b'}' => self.push_dict(Vec::new()),
            b't' | b'l' => {
                let items = self.since_mark()?;
                self.push_list(items);
            }
            n @ 0x85..=0x87 => {
                let count = usize::from(n - 0x84);
                let start = self.stack.len().checked_sub(count).filter(|&s| s >= self.floor()).ok_or(DAMAGED)?;
                let items = self.stack.split_off(start);
                self.push_list(items);
            }
            b'd' => {
                let items = self.pairs_since_mark()?;
                self.push_dict(items);
            }
            b'a' => {
                let item = self.pop()?;
                self.list_on_top()?.push(item);
            }
            b'e' => {
                let items = self.since_mark()?;
                self.list_on_top()?.extend(items);
            }
            b's' => {
                let (value, key) = (self.pop()?, self.pop()?);
                self.dict_on_top()?.extend([key, value]);
            }
            b'u' => {
                let items = self.pairs_since_mark()?;
                self.dict_on_top()?.extend(items);
            }
            // Numbered places.
            b'q' => {
                let place = self.length::<1>()? as u32;
                self.keep(place)?;
            }
            b'r' => {
                let place = u32::from_le_bytes(self.take()?);
                self.keep(place)?;
            }
            0x94 => self.keep(u32::try_from(self.memo.len()).map_err(|_| DAMAGED)?)?,
            b'h' => {
                let place = self.length::<1>()? as u32;
                self.recall(place)?;
            }
            b'j' => {
                let place = u32::from_le_bytes(self.take()?);
                self.recall(place)?;
            }
            // Names, and calls of them.
            b'c' => {
                let (module, name) = (self.line()?, self.line()?);
                self.stack.push(Value::Global(Global::named(module, name)?));
            }
            0x93 => match (self.pop()?, self.pop()?) {
                (Value::Text(name), Value::Text(module)) => {
                    self.stack.push(Value::Global(Global::named(module, name)?));
                }
                _ => return Err(DAMAGED.into()),
            },
            b'Q' => {
                let id = self.pop()?;
                let storage = self.storage(id)?;
                self.content.storages.push(storage);
                self.stack.push(Value::Storage(self.content.storages.len() - 1));
            }
            b'R' => {
                let (arguments, function) = (self.pop()?, self.pop()?);
                let result = self.call(function, arguments)?;
                self.stack.push(result);
            }
            // The attributes of a dictionary, such as the versions of the modules in a state dict, mean nothing here.
            b'b' => match (self.pop()?, self.stack.last()) {
                (Value::Dict(_), Some(Value::Dict(_))) => {}
                _ => return Err("its pickle has an object of a class, expected tensors, numbers and texts".into()),
            },
            code => return Err(unknown(code)),
        }
        Ok(true)
    }

    fn take<const N: usize>(&mut self) -> Checked<[u8; N]> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let bytes = rest.first_chunk::<N>().ok_or("its pickle is cut off")?;
        self.at += N;
        Ok(*bytes)
    }

    /// A number of `N` bytes.
    fn length<const N: usize>(&mut self) -> Checked<usize> {
        let mut wide = [0; 8];
        wide[..N].copy_from_slice(&self.take::<N>()?);
        usize::try_from(u64::from_le_bytes(wide)).map_err(|_| DAMAGED.into())
    }

    /// Bytes behind a number of them.
    fn bytes_of<const N: usize>(&mut self) -> Checked<&'a [u8]> {
        let length = self.length::<N>()?;
        let range: Range<usize> = self.at..self.at.checked_add(length).ok_or(DAMAGED)?;
        let bytes = self.bytes.get(range).ok_or("its pickle is cut off")?;
        self.at += length;
        Ok(bytes)
    }

    fn text<const N: usize>(&mut self) -> Checked<()> {
        let text = std::str::from_utf8(self.bytes_of::<N>()?).map_err(|_| DAMAGED)?;
        self.stack.push(Value::Text(text));
        Ok(())
    }

    fn other<const N: usize>(&mut self) -> Checked<()> {
        self.bytes_of::<N>()?;
        self.stack.push(Value::Other);
        Ok(())
    }

    fn line(&mut self) -> Checked<&'a str> {
        let rest = self.bytes.get(self.at..).unwrap_or_default();
        let end = rest.iter().position(|&b| b == b'\n').ok_or("its pickle is cut off")?;
        self.at += end + 1;
        std::str::from_utf8(&rest[..end]).map_err(|_| DAMAGED.into())
    }

    /// The height of the stack at the last mark.
    fn floor(&self) -> usize {
        self.marks.last().copied().unwrap_or(0)
    }

    fn pop(&mut self) -> Checked<Value<'a>> {
        match self.stack.len() > self.floor() {
            true => self.stack.pop().ok_or_else(|| DAMAGED.into()),
            false => Err(DAMAGED.into()),
        }
    }

    fn since_mark(&mut self) -> Checked<Vec<Value<'a>>> {
        let mark = self.marks.pop().ok_or(DAMAGED)?;
        Ok(self.stack.split_off(mark))
    }

    fn pairs_since_mark(&mut self) -> Checked<Vec<Value<'a>>> {
        let items = self.since_mark()?;
        if items.len().is_multiple_of(2) { Ok(items) } else { Err(DAMAGED.into()) }
    }

    fn push_list(&mut self, items: Vec<Value<'a>>) {
        self.content.lists.push(items);
        self.stack.push(Value::List(self.content.lists.len() - 1));
    }

    fn push_dict(&mut self, items: Vec<Value<'a>>) {
        self.content.dicts.push(items);
        self.stack.push(Value::Dict(self.content.dicts.len() - 1));
    }

    fn list_on_top(&mut self) -> Checked<&mut Vec<Value<'a>>> {
        match self.stack.last() {
            Some(&Value::List(list)) => Ok(&mut self.content.lists[list]),
            _ => Err(DAMAGED.into()),
        }
    }

    fn dict_on_top(&mut self) -> Checked<&mut Vec<Value<'a>>> {
        match self.stack.last() {
            Some(&Value::Dict(dict)) => Ok(&mut self.content.dicts[dict]),
            _ => Err(DAMAGED.into()),
        }
    }

    fn keep(&mut self, place: u32) -> Checked<()> {
        let value = *self.stack.last().ok_or(DAMAGED)?;
        self.memo.insert(place, value);
        Ok(())
    }

    fn recall(&mut self, place: u32) -> Checked<()> {
        let value = *self.memo.get(&place).ok_or(DAMAGED)?;
        self.stack.push(value);
        Ok(())
    }

    fn items(&self, value: Value<'a>) -> Option<&[Value<'a>]> {
        match value {
            Value::List(list) => Some(&self.content.lists[list]),
            _ => None,
        }
    }

    /// `("storage", class, key, device, count)`.
    fn storage(&self, id: Value<'a>) -> Checked<Storage<'a>> {
        match self.items(id) {
            Some(&[Value::Text("storage"), Value::Global(Global::Storage(dtype)), Value::Text(key), _, count]) => {
                Ok(Storage { key, dtype, count: extent(count)? })
            }
            _ => Err("its pickle names an object outside of it that is no storage of a tensor".into()),
        }
    }

    fn call(&mut self, function: Value<'a>, arguments: Value<'a>) -> Checked<Value<'a>> {
        let items = self.items(arguments).ok_or(DAMAGED)?;
        match (function, items) {
            (Value::Global(Global::OrderedDict), []) => {
                self.content.dicts.push(Vec::new());
                Ok(Value::Dict(self.content.dicts.len() - 1))
            }
            (Value::Global(Global::Size), &[extents @ Value::List(_)]) => Ok(extents),
            // The gradient's needs, and hooks.
            (Value::Global(Global::RebuildParameter), &[tensor @ Value::Tensor(_), _, _]) => Ok(tensor),
            (Value::Global(Global::RebuildTensor), &[Value::Storage(storage), offset, shape, strides, _, _, ..]) => {
                let dtype = self.content.storages[storage].dtype.ok_or(DAMAGED)?;
                self.view(storage, dtype, offset, shape, strides)
            }
            (
                Value::Global(Global::RebuildTyped),
                &[Value::Storage(storage), offset, shape, strides, _, _, Value::Global(Global::Dtype(dtype)), ..],
            ) => self.view(storage, dtype, offset, shape, strides),
            _ => Err(DAMAGED.into()),
        }
    }

    fn view(
        &mut self,
        storage: usize,
        dtype: &'a str,
        offset: Value<'a>,
        shape: Value<'a>,
        strides: Value<'a>,
    ) -> Checked<Value<'a>> {
        let mut extents = |value| -> Checked<Vec<usize>> {
            let Value::List(list) = value else { return Err(DAMAGED.into()) };
            // Many views may name one list.
            let items = &self.content.lists[list];
            self.budget.spend(items.len(), size_of::<usize>())?;
            items.iter().map(|&item| extent(item)).collect()
        };
        let (shape, strides) = (extents(shape)?, extents(strides)?);
        let view = View { storage, dtype, offset: extent(offset)?, shape, strides };
        if view.shape.len() != view.strides.len() {
            return Err(DAMAGED.into());
        }
        self.content.views.push(view);
        Ok(Value::Tensor(self.content.views.len() - 1))
    }
}

fn extent(value: Value<'_>) -> Checked<usize> {
    match value {
        Value::Int(v) => usize::try_from(v).map_err(|_| DAMAGED.into()),
        _ => Err(DAMAGED.into()),
    }
}

/// A number in two's complement, the lowest byte first.
fn long(digits: &[u8]) -> Value<'static> {
    if digits.len() > 8 {
        return Value::Other;
    }
    let sign = if digits.last().is_some_and(|b| b & 0x80 != 0) { 0xff } else { 0 };
    let mut wide = [sign; 8];
    wide[..digits.len()].copy_from_slice(digits);
    Value::Int(i64::from_le_bytes(wide))
}

/// The error of an instruction that files of tensors do not need.
fn unknown(code: u8) -> String {
    let name = match code {
        0x81 | 0x92 | b'i' | b'o' => "an object of a class",
        0x82..=0x84 => "a name of a registry of Python's",
        b'P' => "an object outside of it",
        0x8f..=0x91 => "a set",
        0x96..=0x98 => "a buffer",
        b'I' | b'L' | b'F' | b'S' | b'V' | b'p' | b'g' => "values of protocol 0 of Python 2",
        _ => return format!("{DAMAGED}: there is no instruction {code:#04x}"),
    };
    format!("its pickle has {name}, expected tensors, numbers and texts in dictionaries, lists and tuples")
}
