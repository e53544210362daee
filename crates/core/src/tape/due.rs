//! Hooked leaves: when a pass completes their gradients.

use super::{Action, Node};
use smallvec::SmallVec;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::sync::Arc;

/// For each node after which gradients of hooked leaves are complete: the sequence numbers of these leaves. Leaves are the oldest
/// nodes, and without this their hooks would run at the end of the pass.
#[derive(Default)]
pub(super) struct Due(HashMap<u64, SmallVec<[u64; 2]>>);

impl Due {
    pub fn of(roots: &[&Arc<Node>]) -> Due {
        let mut due = Due::default();
        first_users(roots, 0).into_iter().for_each(|(leaf, user)| due.add(user, leaf));
        due
    }

    fn add(&mut self, user: u64, leaf: u64) {
        self.0.entry(user).or_default().push(leaf);
    }

    /// The leaves that are complete after a node, latest first.
    pub fn after(&mut self, node: u64) -> impl Iterator<Item = u64> + use<> {
        self.0.remove(&node).into_iter().flatten().rev()
    }

    /// Leaves that are complete after a replay are so after the last of its own nodes that uses them. `roots` made its outputs.
    pub fn pass_on(&mut self, replay: u64, roots: &[&Arc<Node>]) {
        let Some(leaves) = self.0.remove(&replay) else { return };
        let users = first_users(roots, replay + 1);
        for leaf in leaves {
            if let Some(user) = users.get(&leaf) {
                self.add(*user, leaf);
            }
        }
    }
}

/// The oldest node from `start` on that uses each hooked leaf, by their sequence numbers. A replay uses what it will read.
fn first_users(roots: &[&Arc<Node>], start: u64) -> BTreeMap<u64, u64> {
    let mut first: BTreeMap<u64, u64> = BTreeMap::new();
    let mut seen: HashSet<u64> = roots.iter().map(|node| node.sequence).collect();
    let mut stack: Vec<Arc<Node>> = roots.iter().map(|node| (*node).clone()).collect();
    while let Some(node) = stack.pop() {
        let uses = match &node.state.lock().action {
            Action::Replay(replay) => replay.uses.clone(),
            _ => Arc::default(),
        };
        for input in node.inputs.iter().flatten().map(|edge| &edge.node).chain(&*uses) {
            let state = input.state.lock();
            if !matches!(state.action, Action::Leaf(_)) {
                if input.sequence >= start && seen.insert(input.sequence) {
                    stack.push(input.clone());
                }
            } else if !state.hooks.is_empty() {
                let user = first.entry(input.sequence).or_insert(node.sequence);
                *user = node.sequence.min(*user);
            }
        }
    }
    first
}
