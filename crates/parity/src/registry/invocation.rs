//! A call of an op by name: its attributes and inputs, and what is known of those that calls read.

use super::op::Op;
use crate::case::Case;
use isograd_core::ops::loss::Reduction;
use isograd_core::{DType, Device, Error, Result, Scalar, Tensor};
use serde_json::{Map, Value};
use std::cell::RefCell;
use std::collections::BTreeMap;

/// `attribute` or `input`, and the name.
pub type Name = (&'static str, String);

/// An attribute or an input, as read by calls.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Parameter {
    /// The expected value, such as `a number`; empty if it is not known.
    pub expected: String,
    /// True if calls may omit it.
    pub is_optional: bool,
    /// Its default, if there is one.
    pub default: Option<Value>,
    /// The number of other names that the call had read before.
    pub order: usize,
}

/// Attributes by name.
#[derive(Clone, Debug, Default)]
pub struct Attributes {
    pub(super) values: Map<String, Value>,
    pub(super) device: Option<Device>,
    /// The names that calls with these attributes have read.
    pub(super) read: RefCell<BTreeMap<Name, Parameter>>,
    /// True if a call reads every name that it knows.
    pub(super) is_listing: bool,
}

impl Attributes {
    /// The entries of a JSON object; empty for other values.
    pub fn new(object: &Value) -> Attributes {
        Attributes { values: object.as_object().cloned().unwrap_or_default(), ..Attributes::default() }
    }

    /// The attributes of a case.
    pub fn of(case: &Case) -> Attributes {
        Attributes { device: case.device.clone(), ..Attributes::new(&case.attributes) }
    }

    /// These attributes, with the device of an op without inputs.
    pub fn on(self, device: &Device) -> Attributes {
        Attributes { device: Some(device.clone()), ..self }
    }

    /// The attributes whose names `chooses` accepts.
    pub(crate) fn only(mut self, chooses: impl Fn(&str) -> bool) -> Attributes {
        self.values.retain(|name, _| chooses(name));
        self
    }

    /// The attributes and inputs that no call with these attributes has read.
    pub fn unread(&self, inputs: &[(String, Tensor)]) -> Vec<Name> {
        let attributes = self.values.iter().filter(|(_, value)| !value.is_null()).map(|(name, _)| ("attribute", name));
        let all = attributes.chain(inputs.iter().map(|(name, _)| ("input", name)));
        let all = all.map(|(what, name)| (what, name.clone()));
        all.filter(|name| !self.read.borrow().contains_key(name)).collect()
    }

    /// Records that a call has read a name, with the call's information about the parameter.
    pub(super) fn note(&self, what: &'static str, name: &str, tell: impl FnOnce(&mut Parameter)) {
        let mut read = self.read.borrow_mut();
        let order = read.len();
        tell(read.entry((what, name.to_string())).or_insert_with(|| Parameter { order, ..Parameter::default() }));
    }
}

/// The reductions of a loss, by the names of the attribute `reduction`.
pub(super) const REDUCTIONS: [(&str, Reduction); 4] = [
    ("none", Reduction::None),
    ("mean", Reduction::Mean),
    ("sum", Reduction::Sum),
    ("batchmean", Reduction::BatchMean),
];

/// Such as `none, mean or sum`.
fn one_of(names: &[&str]) -> String {
    match names {
        [first @ .., last] if !first.is_empty() => format!("{} or {last}", first.join(", ")),
        _ => names.concat(),
    }
}

/// A call of an op by name.
pub struct Invocation<'a> {
    pub(super) op: &'a Op,
    pub(super) attributes: &'a Attributes,
    pub(super) inputs: &'a [(String, Tensor)],
    /// True if an op in place may change its input directly.
    pub(super) is_in_place: bool,
}

impl Invocation<'_> {
    pub(super) fn fail<T>(&self, what: &str, name: &str) -> Result<T> {
        Err(Error::attr(self.op.name, format!("`{name}` is missing or not {what}")))
    }

    pub(super) fn given(&self, name: &str) -> Option<&Value> {
        self.attributes.note("attribute", name, |_| ());
        self.attributes.values.get(name).filter(|v| !v.is_null())
    }

    /// True if an optional attribute is given.
    pub(super) fn has(&self, name: &str) -> bool {
        self.attributes.note("attribute", name, |parameter| parameter.is_optional = true);
        self.given(name).is_some()
    }

    /// True if it is given as null, where null differs from absence.
    pub(super) fn is_null(&self, name: &str) -> bool {
        self.attributes.note("attribute", name, |parameter| parameter.is_optional = true);
        self.attributes.values.get(name).is_some_and(Value::is_null)
    }

    /// Records the expected value of an attribute.
    pub(super) fn expect(&self, name: &str, what: &str) {
        self.attributes.note("attribute", name, |parameter| parameter.expected = what.to_string());
    }

    pub(super) fn get<T>(&self, name: &str, what: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<T> {
        self.expect(name, what);
        self.given(name).and_then(convert).map_or_else(|| self.fail(what, name), Ok)
    }

    /// The value of an attribute, converted by `read`, or its default.
    pub(super) fn or<T: Clone + Into<Value>>(
        &self,
        name: &str,
        default: T,
        read: impl FnOnce(&Self, &str) -> Result<T>,
    ) -> Result<T> {
        let given = self.optional_of(name, read)?;
        self.defaults_to(name, default.clone());
        Ok(given.unwrap_or(default))
    }

    /// Records the default of an attribute.
    pub(super) fn defaults_to(&self, name: &str, default: impl Into<Value>) {
        self.attributes.note("attribute", name, |parameter| parameter.default = Some(default.into()));
    }

    /// `defaults_to`, if this call has read the attribute. A flag is 0 or 1.
    pub(super) fn suppose(&self, name: &str, default: f64) {
        let looked = self.attributes.read.borrow().get(&("attribute", name.to_string())).cloned();
        match looked {
            Some(parameter) if parameter.expected == "a bool" => self.defaults_to(name, default != 0.0),
            Some(_) => self.defaults_to(name, default),
            None => {}
        }
    }

    /// The value of an attribute, converted by `read`; `None` if it is absent. An absent attribute is read only to list its
    /// expected value.
    pub(super) fn optional_of<T>(&self, name: &str, read: impl FnOnce(&Self, &str) -> Result<T>) -> Result<Option<T>> {
        let is_given = self.has(name);
        match is_given || self.attributes.is_listing {
            true => read(self, name).map(Some).or_else(|e| if is_given { Err(e) } else { Ok(None) }),
            false => Ok(None),
        }
    }

    /// A number, or `"inf"`, `"-inf"` or `"nan"`.
    pub(super) fn float(&self, name: &str) -> Result<f64> {
        self.get(name, "a number", |v| v.as_f64().or_else(|| v.as_str()?.parse().ok()))
    }

    pub(super) fn float_or(&self, name: &str, default: f64) -> Result<f64> {
        self.or(name, default, Self::float)
    }

    pub(super) fn scalar(&self, name: &str) -> Result<Scalar> {
        match self.given(name).and_then(Value::as_i64) {
            Some(v) => self.get(name, "a number", |_| Some(v.into())),
            None => Ok(self.float(name)?.into()),
        }
    }

    /// An integer or a number; `default` if it is absent.
    pub(super) fn scalar_or(&self, name: &str, default: i64) -> Result<Scalar> {
        let given = self.optional_of(name, Self::scalar)?;
        self.defaults_to(name, default);
        Ok(given.unwrap_or_else(|| default.into()))
    }

    /// The value of an attribute that names one of several choices.
    pub(super) fn choice<T: Clone>(&self, name: &str, choices: &[(&str, T)]) -> Result<T> {
        let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
        let found = |v: &Value| choices.iter().find(|(name, _)| v.as_str() == Some(name)).map(|(_, t)| t.clone());
        self.get(name, &one_of(&names), found)
    }

    /// The same; the first choice if the attribute is absent.
    pub(super) fn choice_or_first<T: Clone>(&self, name: &str, choices: &[(&str, T)]) -> Result<T> {
        let (first, value) = &choices[0];
        let read = |c: &Self, name: &str| c.choice(name, choices);
        let chosen = self.optional_of(name, read)?;
        self.defaults_to(name, *first);
        Ok(chosen.unwrap_or_else(|| value.clone()))
    }

    pub(super) fn int(&self, name: &str) -> Result<i64> {
        self.get(name, "an integer", Value::as_i64)
    }

    pub(super) fn int_or(&self, name: &str, default: i64) -> Result<i64> {
        self.or(name, default, Self::int)
    }

    pub(super) fn dim(&self, name: &str) -> Result<isize> {
        Ok(self.int(name)? as isize)
    }

    pub(super) fn dim_or(&self, name: &str, default: isize) -> Result<isize> {
        Ok(self.int_or(name, default as i64)? as isize)
    }

    pub(super) fn size(&self, name: &str) -> Result<usize> {
        self.get(name, "a size", |v| v.as_u64().map(|v| v as usize))
    }

    pub(super) fn size_or(&self, name: &str, default: usize) -> Result<usize> {
        self.or(name, default, Self::size)
    }

    pub(super) fn flag(&self, name: &str) -> Result<bool> {
        self.flag_or(name, false)
    }

    pub(super) fn flag_or(&self, name: &str, default: bool) -> Result<bool> {
        self.or(name, default, |c, name| c.get(name, "a bool", Value::as_bool))
    }

    pub(super) fn words(&self, name: &str) -> Result<Vec<String>> {
        let words = |v: &Value| v.as_array()?.iter().map(|word| Some(word.as_str()?.to_string())).collect();
        self.get(name, "a list of names", words)
    }

    pub(super) fn list<T>(&self, name: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
        self.get(name, "a list of integers", |v| v.as_array()?.iter().map(&convert).collect())
    }

    pub(super) fn list_or_empty<T>(&self, name: &str, convert: impl Fn(&Value) -> Option<T>) -> Result<Vec<T>> {
        Ok(self.optional_of(name, |c, name| c.list(name, convert))?.unwrap_or_default())
    }

    pub(super) fn dims(&self, name: &str) -> Result<Vec<isize>> {
        self.list(name, |v| Some(v.as_i64()? as isize))
    }

    pub(super) fn shape(&self, name: &str) -> Result<Vec<usize>> {
        self.list(name, |v| Some(v.as_u64()? as usize))
    }

    pub(super) fn dtype(&self, name: &str) -> Result<DType> {
        self.get(name, "a dtype", |v| v.as_str().map(String::from))?.parse()
    }

    pub(super) fn dtype_or(&self, name: &str, default: DType) -> Result<DType> {
        self.or(name, default.to_string(), |c, name| Ok(c.dtype(name)?.to_string()))?.parse()
    }

    /// The device of an op without inputs: the case's, or the CPU.
    pub(super) fn device(&self) -> Result<Device> {
        self.attributes.device.clone().map_or_else(Device::cpu, Ok)
    }

    pub(super) fn reduction(&self) -> Result<Reduction> {
        self.choice("reduction", &REDUCTIONS)
    }

    pub(super) fn optional(&self, name: &str) -> Option<&Tensor> {
        self.attributes.note("input", name, |parameter| parameter.is_optional = true);
        self.inputs.iter().find(|(n, _)| n == name).map(|(_, t)| t)
    }

    pub(super) fn input(&self, name: &str) -> Result<&Tensor> {
        self.attributes.note("input", name, |_| ());
        let found = self.inputs.iter().find(|(n, _)| n == name);
        found.map_or_else(|| self.fail("a tensor", name), |(_, t)| Ok(t))
    }

    /// The input that an op in place changes.
    pub(super) fn changed(&self, name: &str) -> Result<Tensor> {
        let x = self.input(name)?.detach();
        if self.is_in_place { Ok(x) } else { x.copy() }
    }

    pub(super) fn all(&self) -> Vec<&Tensor> {
        self.inputs.iter().for_each(|(name, _)| self.attributes.note("input", name, |_| ()));
        self.inputs.iter().map(|(_, t)| t).collect()
    }
}
