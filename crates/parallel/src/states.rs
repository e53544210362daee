//! States of optimizers that each have a part of a model: their groups of options, and their bytes for other ranks.

use isograd_core::{Device, Error, Result, Tensor};
use isograd_nn::StateDict;

/// The beginning of the names of a group's options.
const GROUP: &str = "group.";
/// The option that lists a group's parameters.
const MEMBERS: &str = "params";

/// The groups of an optimizer for a whole model, beside those of the optimizer of a part.
pub struct Groups {
    /// The parameters of each group, by their numbers in the model.
    whole: Vec<Vec<i64>>,
    /// The group in the model of each group of the part, and its parameters by their numbers in the part.
    part: Vec<(usize, Vec<i64>)>,
}

/// The lists of parameters in the options of an optimizer.
fn members(options: &StateDict) -> Result<Vec<Vec<i64>>> {
    (0..).map_while(|k| options.get(&format!("{GROUP}{k}.{MEMBERS}"))).map(Tensor::to_vec).collect()
}

/// The number of a group and its option in a name.
fn option_of(name: &str) -> Option<(usize, &str)> {
    let (group, option) = name.strip_prefix(GROUP)?.split_once('.')?;
    Some((group.parse().ok()?, option))
}

impl Groups {
    /// The groups in the options of an optimizer for all parameters, and in those of one for the parameters with the numbers `own`. Errors:
    /// `Value` if parameters of the part have other groups than in the whole.
    pub fn new(op: &'static str, whole: &StateDict, part: &StateDict, own: &[i64]) -> Result<Groups> {
        let (whole, listed) = (members(whole)?, members(part)?);
        let group_of = |local: &i64| {
            let number = own.get(*local as usize)?;
            whole.iter().position(|group| group.contains(number))
        };
        let mut part: Vec<(usize, Vec<i64>)> = Vec::new();
        for group in listed {
            let found: Vec<Option<usize>> = group.iter().map(group_of).collect();
            match found.first().copied().flatten() {
                Some(first) if found.iter().all(|g| *g == Some(first)) && part.iter().all(|(g, _)| *g != first) => {
                    part.push((first, group));
                }
                _ => {
                    let message =
                        "parameters have other groups in a part of the model than in the whole; choose them by name";
                    return Err(Error::value(op, message));
                }
            }
        }
        Ok(Groups { whole, part })
    }

    /// True for the name of a rate, or of an option of a group.
    pub fn is_option(name: &str) -> bool {
        matches!(name, "lr" | "initial_lr") || option_of(name).is_some()
    }

    /// The name in the whole optimizer's state of a name of the part's; `None` for the list of a group's parameters.
    pub fn whole_name(&self, name: &str) -> Option<String> {
        match option_of(name) {
            Some((_, MEMBERS)) => None,
            Some((k, option)) => Some(format!("{GROUP}{}.{option}", self.part.get(k)?.0)),
            None => Some(name.to_string()),
        }
    }

    /// Adds the lists of the groups' parameters to a state of the whole.
    pub fn add_members(&self, state: &mut StateDict, device: &Device) -> Result<()> {
        for (k, group) in self.whole.iter().enumerate() {
            state.insert(format!("{GROUP}{k}.{MEMBERS}"), Tensor::from_slice(group, group.len(), device)?);
        }
        Ok(())
    }

    /// The rates and options of the part, from a state of the whole. Errors: `Value` if the state has other groups.
    pub fn part_options(&self, op: &'static str, state: &StateDict, device: &Device) -> Result<StateDict> {
        let saved = members(state)?;
        if !saved.is_empty() && saved != self.whole {
            let message = format!(
                "the state has {} groups of parameters, with other members than the {} groups of the optimizer",
                saved.len(),
                self.whole.len()
            );
            return Err(Error::value(op, message));
        }
        let mut part = StateDict::new();
        for (name, t) in state {
            match option_of(name) {
                Some((_, MEMBERS)) => {}
                Some((g, option)) => {
                    let own = self.part.iter().position(|(of, _)| *of == g);
                    part.extend(own.map(|k| (format!("{GROUP}{k}.{option}"), t.clone())));
                }
                None if Groups::is_option(name) => {
                    part.insert(name.clone(), t.clone());
                }
                None => {}
            }
        }
        if !saved.is_empty() {
            for (k, (_, group)) in self.part.iter().enumerate() {
                part.insert(format!("{GROUP}{k}.{MEMBERS}"), Tensor::from_slice(group, group.len(), device)?);
            }
        }
        Ok(part)
    }
}

/// The parameter among `names` that a state belongs to, and the state's kind: `fc1.weight.exp_avg` is `exp_avg` of `fc1.weight`. Of several
/// parameters, whose names begin with each other, the longest.
pub fn parameter_of<'n>(name: &'n str, names: &[String]) -> Option<(usize, &'n str)> {
    let kind = |own: &String| name.strip_prefix(own.as_str())?.strip_prefix('.');
    let found = names.iter().enumerate().filter_map(|(i, own)| Some((i, own.len(), kind(own)?)));
    found.max_by_key(|(_, length, _)| *length).map(|(i, _, kind)| (i, kind))
}

/// A named tensor as bytes: the lengths of a head and of the elements, the head, the elements.
pub fn encode(name: &str, t: &Tensor) -> Result<Vec<u8>> {
    let dims: Vec<String> = t.dims().iter().map(usize::to_string).collect();
    let head = format!("{name}\n{}\n{}", t.dtype(), dims.join(","));
    let body = t.to_bytes()?;
    let lengths = [head.len() as u64, body.len() as u64].map(u64::to_le_bytes);
    Ok([lengths.as_flattened(), head.as_bytes(), &body].concat())
}

/// The tensors of [`encode`].
pub fn decode(op: &'static str, mut bytes: &[u8], device: &Device) -> Result<Vec<(String, Tensor)>> {
    let damaged = || Error::backend(op, "another rank's states are damaged");
    let mut found = Vec::new();
    while let Some((lengths, rest)) = bytes.split_first_chunk::<16>() {
        let (head, body) = lengths.split_at(8);
        let length = |word: &[u8]| word.first_chunk().map_or(0, |word| u64::from_le_bytes(*word) as usize);
        let (head, rest) = rest.split_at_checked(length(head)).ok_or_else(damaged)?;
        let (body, rest) = rest.split_at_checked(length(body)).ok_or_else(damaged)?;
        let head = std::str::from_utf8(head).map_err(|_| damaged())?;
        let [name, dtype, dims] = head.split('\n').collect::<Vec<_>>().try_into().map_err(|_| damaged())?;
        let dims = dims.split(',').filter(|dim| !dim.is_empty()).map(str::parse).collect::<Result<Vec<usize>, _>>();
        let t = Tensor::from_bytes(body, dims.map_err(|_| damaged())?, dtype.parse()?, device)?;
        found.push((name.to_string(), t));
        bytes = rest;
    }
    Ok(found)
}
