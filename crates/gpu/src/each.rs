//! A row of the pointwise table over many sets of tensors, in one launch.

use crate::driver::Driver;
use crate::elementwise::{Body, Plan, acc};
use crate::launch::{Arguments, THREADS};
use crate::sets::Sets;
use crate::source::Variant;
use crate::{Gpu, place};
use isograd_core::pointwise::Pointwise;
use isograd_core::{Call, Error, Operand, Result};
use std::fmt::Write;

pub fn run<D: Driver>(gpu: &Gpu<D>, call: &Call<'_>, row: Pointwise) -> Result<()> {
    if row.is_checked() {
        return Err(Error::unsupported(call.op, format!("`{}` checks its elements, which it does alone", row.name())));
    }
    let shared = call.ints[0] as usize;
    let own = row.inputs() - row.outputs() - shared;
    let (inputs, shared) = call.inputs.split_at(call.inputs.len() - shared);
    let plan = plan(call, row, &inputs[..own], shared)?;
    let outputs = call.outputs.chunks(row.outputs()).enumerate();
    let sets = outputs.map(|(i, targets)| inputs[i * own..][..own].iter().chain(targets).collect()).collect();
    let sets = Sets { sets, vector: plan.vector };
    let plan = Plan { is_wide: sets.is_wide(), ..plan };
    let table = sets.table(gpu)?;
    let add = |list: Arguments, operand: &Operand<'_>| Ok(list.pointer(place::<D>(operand)?));
    let arguments = shared.iter().try_fold(table.arguments(), add)?;
    let arguments = call.floats.iter().fold(arguments, |list, &k| list.float(k, plan.acc));
    gpu.generated(variant(&plan), "each", &|| text(&plan), table.geometry(), &arguments)
}

/// How the first set is computed, and so are the others.
fn plan(call: &Call<'_>, row: Pointwise, own: &[Operand<'_>], shared: &[Operand<'_>]) -> Result<Plan> {
    let targets = &call.outputs[..row.outputs()];
    let dtype = |o: &Operand<'_>| o.dtype;
    let all = own.iter().chain(shared).chain(targets).map(dtype);
    let largest = own.iter().chain(targets).map(|o| o.dtype.size()).max().unwrap_or(1);
    let is_still = |k: usize| (own.len()..own.len() + shared.len()).contains(&k);
    Ok(Plan {
        body: Body::Row(row),
        acc: acc(call.op, Body::Row(row), all.clone())?,
        inputs: own.iter().chain(shared).map(dtype).collect(),
        outputs: targets.iter().map(dtype).collect(),
        is_still: (0..all.count()).map(is_still).collect(),
        rank: 1,
        vector: 16 / largest,
        is_wide: false,
    })
}

fn variant(plan: &Plan) -> Variant {
    let own = plan.is_still.iter().filter(|still| !**still).count();
    plan.describe(Variant::new("each").define("THREADS", THREADS).define("OPERANDS", own))
}

fn text(plan: &Plan) -> String {
    let mut text = plan.functions();
    let (own, shared): (Vec<usize>, Vec<usize>) = (0..plan.is_still.len()).partition(|&k| !plan.is_still[k]);
    let operands = plan.operands();
    let attributes = (0..plan.attributes()).map(|i| format!(", A k{i}"));
    let parameters: String = shared.iter().map(|&k| format!(", GLOBAL const S_{} *s{k}", operands[k].0)).collect();
    // Writing to a String cannot fail.
    let _ = writeln!(
        text,
        "KERNEL(each)(GLOBAL const i64 *table, i64 tensors, i64 size{parameters}{}) {{",
        attributes.collect::<String>()
    );
    // In registers from here on; the body reads them as arrays of one element.
    for k in shared {
        let _ = writeln!(text, "    const S_{} {}[1] = {{s{k}[0]}};", operands[k].0, plan.operand(k));
    }
    text += "    for (i64 chunk = GROUP; chunk < CHUNKS(table, tensors); chunk += GROUPS) {\n        \
             CHUNK_OF(table, tensors, chunk, size);\n";
    for (i, &k) in own.iter().enumerate() {
        let ctype = format!("{}S_{}", if k < plan.inputs.len() { "const " } else { "" }, operands[k].0);
        let _ = writeln!(text, "        GLOBAL {ctype} *{} = POINTER({ctype}, entry[{i}]);", plan.operand(k));
    }
    text += "        EACH_WHOLE(g) {\n";
    for k in 0..plan.is_still.len() {
        let _ = writeln!(text, "        idx o{k} = {};", if plan.is_still[k] { "0" } else { "g * VECTOR" });
    }
    plan.vector_body(&mut text);
    text += "        }\n        EACH_OTHER(g) {\n";
    let at = |k: usize| if plan.is_still[k] { "0".to_string() } else { "g".to_string() };
    plan.element("            ", &at, "g", &mut text);
    text + "        }\n    }\n}\n"
}
