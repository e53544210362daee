//! Arithmetic, comparisons and casts of numbers on the host.

use super::{Operands, broadcast_dims, rounded, small};
use crate::import::element::Element;
use crate::import::value::{Host, Numbers};
use isograd_core::{Error, Result};

/// Functions of two integers and of two floats.
type Binary = (fn(i64, i64) -> Result<i64>, fn(f64, f64) -> f64);
/// Comparisons of two integers and of two floats.
type Comparison = (fn(&i64, &i64) -> bool, fn(&f64, &f64) -> bool);
/// Functions of an integer, where it has one, and of a float.
type Unary = (Option<fn(i64) -> i64>, fn(f64) -> f64);

/// The result of a call; `None` for an operator that is not here.
pub fn evaluate(operands: &Operands<'_>) -> Result<Option<Host>> {
    let name = operands.call.node.op_type;
    if let Some(function) = binary(operands, name)? {
        return all(operands, function);
    }
    if let Some(function) = comparison(name) {
        return compare(operands, function);
    }
    if let Some(function) = unary(name) {
        return each(operands, function);
    }
    match name {
        "And" | "Or" | "Xor" => logical(operands, name),
        "Not" => Ok(Some(mapped(operands.x(0)?, Element::BOOL, |v| (v == 0) as i64))),
        "Cast" => cast(operands),
        "Where" => choose(operands),
        _ => Ok(None),
    }
}

fn binary(operands: &Operands<'_>, name: &str) -> Result<Option<Binary>> {
    Ok(Some(match name {
        "Add" | "Sum" => (|a, b| Ok(a.wrapping_add(b)), |a, b| a + b),
        "Sub" => (|a, b| Ok(a.wrapping_sub(b)), |a, b| a - b),
        "Mul" => (|a, b| Ok(a.wrapping_mul(b)), |a, b| a * b),
        "Div" => (|a, b| nonzero(b).map(|b| a.wrapping_div(b)), |a, b| a / b),
        "Mod" if operands.call.flag("fmod")? => (|a, b| nonzero(b).map(|b| a.wrapping_rem(b)), |a, b| a % b),
        "Mod" => (
            |a, b| nonzero(b).map(|b| a.wrapping_rem(b).wrapping_add(b).wrapping_rem(b)),
            |a, b| a - b * (a / b).floor(),
        ),
        "Max" => (|a, b| Ok(a.max(b)), |a, b| if a.is_nan() || a > b { a } else { b }),
        "Min" => (|a, b| Ok(a.min(b)), |a, b| if a.is_nan() || a < b { a } else { b }),
        _ => return Ok(None),
    }))
}

fn nonzero(v: i64) -> Result<i64> {
    if v == 0 { Err(Error::value("onnx", "an integer is divided by 0")) } else { Ok(v) }
}

fn comparison(name: &str) -> Option<Comparison> {
    Some(match name {
        "Equal" => (i64::eq, f64::eq),
        "Less" => (i64::lt, f64::lt),
        "Greater" => (i64::gt, f64::gt),
        "LessOrEqual" => (i64::le, f64::le),
        "GreaterOrEqual" => (i64::ge, f64::ge),
        _ => return None,
    })
}

fn unary(name: &str) -> Option<Unary> {
    Some(match name {
        "Neg" => (Some(i64::wrapping_neg), |v| -v),
        "Abs" => (Some(i64::wrapping_abs), f64::abs),
        "Sign" => (Some(i64::signum), |v| if v == 0.0 || v.is_nan() { 0.0 } else { v.signum() }),
        "Floor" => (None, f64::floor),
        "Ceil" => (None, f64::ceil),
        "Round" => (None, f64::round_ties_even),
        "Sqrt" => (None, f64::sqrt),
        "Reciprocal" => (None, |v| 1.0 / v),
        _ => return None,
    })
}

/// A function of all operands, two at a time.
fn all(inputs: &Operands<'_>, (ints, floats): Binary) -> Result<Option<Host>> {
    let Some(operands) = inputs.each() else { return Ok(None) };
    let (Some((first, rest)), Some(dims)) = (operands.split_first(), common(&operands)?) else { return Ok(None) };
    let mut found = first.broadcast(&dims);
    for other in rest {
        found = two(&found, &other.broadcast(&dims), (ints, floats))?;
    }
    Ok(Some(found))
}

fn two(a: &Host, b: &Host, (ints, floats): Binary) -> Result<Host> {
    same_types(a, b)?;
    let element = a.element;
    let numbers = match (&a.numbers, &b.numbers) {
        (Numbers::Ints(a), Numbers::Ints(b)) => {
            let each = a.iter().zip(b).map(|(&a, &b)| Ok(element.wrap_number(ints(a, b)?)));
            Numbers::Ints(each.collect::<Result<_>>()?)
        }
        _ => {
            let (a, b) = (a.to_floats(), b.to_floats());
            Numbers::Floats(a.into_iter().zip(b).map(|(a, b)| rounded(element, floats(a, b))).collect())
        }
    };
    Ok(Host::new(element, a.dims.clone(), numbers))
}

fn same_types(a: &Host, b: &Host) -> Result<()> {
    if a.element == b.element {
        return Ok(());
    }
    let message = format!("{} and {} were given, expected one type", a.element.name(), b.element.name());
    Err(Error::dtype("onnx", message))
}

/// The extents to which operands broadcast, unless the host has no room for them.
fn common(operands: &[&Host]) -> Result<Option<Vec<usize>>> {
    let dims: Vec<&[usize]> = operands.iter().map(|host| &host.dims[..]).collect();
    let dims = broadcast_dims(&dims)?;
    Ok(small(&dims).map(|_| dims))
}

fn compare(operands: &Operands<'_>, (ints, floats): Comparison) -> Result<Option<Host>> {
    let (a, b) = (operands.x(0)?, operands.x(1)?);
    same_types(a, b)?;
    let Some(dims) = common(&[a, b])? else { return Ok(None) };
    let (a, b) = (a.broadcast(&dims), b.broadcast(&dims));
    let found = match (&a.numbers, &b.numbers) {
        (Numbers::Ints(a), Numbers::Ints(b)) => a.iter().zip(b).map(|(a, b)| ints(a, b).into()).collect(),
        _ => a.to_floats().iter().zip(&b.to_floats()).map(|(a, b)| floats(a, b).into()).collect(),
    };
    Ok(Some(Host::ints(Element::BOOL, dims, found)))
}

fn each(operands: &Operands<'_>, (ints, floats): Unary) -> Result<Option<Host>> {
    let x = operands.x(0)?;
    Ok(match (&x.numbers, ints) {
        (Numbers::Ints(_), Some(f)) => Some(mapped(x, x.element, f)),
        (Numbers::Ints(_), None) => None,
        (Numbers::Floats(v), _) => {
            let numbers = v.iter().map(|&v| rounded(x.element, floats(v))).collect();
            Some(Host::floats(x.element, x.dims.clone(), numbers))
        }
    })
}

/// A function of integers.
fn mapped(x: &Host, element: Element, f: impl Fn(i64) -> i64) -> Host {
    let numbers = match &x.numbers {
        Numbers::Ints(v) => v.iter().map(|&v| element.wrap_number(f(v))).collect(),
        Numbers::Floats(v) => v.iter().map(|&v| f((v != 0.0) as i64)).collect(),
    };
    Host::ints(element, x.dims.clone(), numbers)
}

fn logical(operands: &Operands<'_>, name: &str) -> Result<Option<Host>> {
    let (a, b) = (operands.x(0)?, operands.x(1)?);
    let Some(dims) = common(&[a, b])? else { return Ok(None) };
    let (a, b) = (a.broadcast(&dims), b.broadcast(&dims));
    let (Numbers::Ints(a), Numbers::Ints(b)) = (&a.numbers, &b.numbers) else { return Ok(None) };
    let f = |(&a, &b): (&i64, &i64)| match name {
        "And" => a & b,
        "Or" => a | b,
        _ => a ^ b,
    };
    Ok(Some(Host::ints(Element::BOOL, dims, a.iter().zip(b).map(f).collect())))
}

fn cast(operands: &Operands<'_>) -> Result<Option<Host>> {
    let Some(to) = operands.call.element_named("to")?.filter(|to| !to.is_float8()) else { return Ok(None) };
    let x = operands.x(0)?;
    let dims = x.dims.clone();
    Ok(Some(match (&x.numbers, to.limits()) {
        (_, None) if to.dtype().is_float() => {
            Host::floats(to, dims, x.to_floats().into_iter().map(|v| rounded(to, v)).collect())
        }
        (Numbers::Ints(v), Some(_)) => Host::ints(to, dims, v.iter().map(|&v| to.wrap_number(v)).collect()),
        // Bool.
        (Numbers::Ints(_), None) => mapped(x, to, |v| (v != 0) as i64),
        (Numbers::Floats(v), None) => Host::ints(to, dims, v.iter().map(|&v| (v != 0.0) as i64).collect()),
        (Numbers::Floats(v), Some([low, high])) => {
            Host::ints(to, dims, v.iter().map(|&v| (v as i64).clamp(low, high)).collect())
        }
    }))
}

fn choose(operands: &Operands<'_>) -> Result<Option<Host>> {
    let (condition, a, b) = (operands.x(0)?, operands.x(1)?, operands.x(2)?);
    same_types(a, b)?;
    let Some(dims) = common(&[condition, a, b])? else { return Ok(None) };
    let [condition, a, b] = [condition, a, b].map(|host| host.broadcast(&dims));
    let Numbers::Ints(condition) = &condition.numbers else { return Ok(None) };
    fn chosen<T: Copy>(condition: &[i64], a: &[T], b: &[T]) -> Vec<T> {
        condition.iter().zip(a.iter().zip(b)).map(|(&c, (&a, &b))| if c != 0 { a } else { b }).collect()
    }
    let numbers = match (&a.numbers, &b.numbers) {
        (Numbers::Ints(a), Numbers::Ints(b)) => Numbers::Ints(chosen(condition, a, b)),
        _ => Numbers::Floats(chosen(condition, &a.to_floats(), &b.to_floats())),
    };
    Ok(Some(Host::new(a.element, dims, numbers)))
}
