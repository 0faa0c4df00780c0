//! Splits by controlled rounding: each stratum gives each split the floor or ceiling of its share, and so does the
//! whole (Bacharach, "Matrix rounding problems", 1966; Cox, "A constructive procedure for unbiased controlled
//! rounding", 1987), here as one pass over the strata in exact integers.
//!
//! Each stratum's whole parts are taken at once. Its fractional parts are edges of a bipartite graph strata × splits;
//! along a cycle of that graph fractions move alternately up and down until one is 0 or 1, which keeps the sums of
//! strata and splits. A forest has fewer edges than nodes and every pending stratum has two or more edges, so at most
//! m − 1 strata are pending for m splits. One dummy stratum at the end makes all sums whole, and the graph empties.

use crate::{
    error::{Error, Result},
    keys::{Domain, Key, KeyedRng},
};

/// Names and exact shares of the splits. Shares are rationals with one denominator, never floats.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shares {
    names: Vec<String>,
    parts: Vec<u64>,
    whole: u64,
}

/// The split that exists when none are asked for.
pub const DEFAULT_SPLIT: &str = "train";

impl Default for Shares {
    fn default() -> Self {
        Self { names: vec![DEFAULT_SPLIT.into()], parts: vec![1], whole: 1 }
    }
}

impl Shares {
    /// Parses `train=0.8,validation=0.1,test=0.1`; a share is a decimal or a fraction `1/3`. The sum must be exactly 1.
    ///
    /// # Errors
    /// [`Error::Usage`] saying which part is wrong.
    pub fn parse(text: &str) -> Result<Self> {
        let help = "write --split train=0.8,validation=0.1,test=0.1 with shares that sum to 1";
        let mut names: Vec<String> = Vec::new();
        let mut shares: Vec<(u64, u64)> = Vec::new();
        for part in text.split(',').map(str::trim).filter(|p| !p.is_empty()) {
            let (name, share) =
                part.split_once('=').ok_or_else(|| Error::usage(format!("split \"{part}\" has no share"), help))?;
            let (name, share) = (name.trim(), share.trim());
            let plain = !name.is_empty()
                && name.starts_with(|c: char| c.is_ascii_alphabetic())
                && name.bytes().all(|b| b.is_ascii_alphanumeric() || b == b'-' || b == b'_');
            if !plain {
                return Err(Error::usage(format!("\"{name}\" can't name a split"), "use letters, digits, - and _"));
            }
            if names.iter().any(|n| n == name) {
                return Err(Error::usage(format!("split \"{name}\" is given twice"), help));
            }
            let ratio = ratio(share).filter(|r| r.0 > 0).ok_or_else(|| {
                Error::usage(format!("share \"{share}\" of split \"{name}\" is not a positive number"), help)
            })?;
            names.push(name.to_owned());
            shares.push(ratio);
        }
        if names.is_empty() {
            return Err(Error::usage("no split is given", help));
        }
        let too_fine = || Error::usage(format!("the shares of --split {text} are too fine"), "use at most 9 digits");
        let mut whole: u64 = 1;
        for (_, d) in &shares {
            whole = whole.checked_mul(d / gcd(whole, *d)).filter(|w| *w <= 1 << 40).ok_or_else(too_fine)?;
        }
        let parts: Vec<u64> = shares.iter().map(|(n, d)| n * (whole / d)).collect();
        let sum: u64 = parts.iter().sum();
        if sum != whole {
            return Err(Error::usage(format!("the shares of --split {text} sum to {sum}/{whole}, not to 1"), help));
        }
        Ok(Self { names, parts, whole })
    }

    /// Number of splits.
    #[must_use]
    pub fn len(&self) -> usize {
        self.names.len()
    }

    /// Never: there is at least one split.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.names.is_empty()
    }

    /// Names in order.
    #[must_use]
    pub fn names(&self) -> &[String] {
        &self.names
    }

    /// Parts of the whole, by split.
    #[must_use]
    pub fn parts(&self) -> &[u64] {
        &self.parts
    }

    /// What the parts sum to.
    #[must_use]
    pub fn whole(&self) -> u64 {
        self.whole
    }

    /// Share of split `s` as `part/whole`, for the manifest.
    #[must_use]
    pub fn fraction(&self, s: usize) -> String {
        let part = self.parts.get(s).copied().unwrap_or(0);
        let g = gcd(part, self.whole).max(1);
        format!("{}/{}", part / g, self.whole / g)
    }

    /// Floor and ceiling of split `s`'s share of `n` rows.
    #[must_use]
    pub fn bounds(&self, s: usize, n: u64) -> (u64, u64) {
        let product = u128::from(self.parts.get(s).copied().unwrap_or(0)) * u128::from(n);
        let whole = u128::from(self.whole);
        ((product / whole) as u64, product.div_ceil(whole) as u64)
    }
}

fn gcd(a: u64, b: u64) -> u64 {
    if b == 0 { a } else { gcd(b, a % b) }
}

fn ratio(text: &str) -> Option<(u64, u64)> {
    let digits = |t: &str| t.len() <= 9 && !t.is_empty() && t.bytes().all(|b| b.is_ascii_digit());
    let (n, d) = if let Some((n, d)) = text.split_once('/') {
        if !digits(n) || !digits(d) {
            return None;
        }
        (n.parse().ok()?, d.parse().ok()?)
    } else {
        let (whole, fraction) = text.split_once('.').unwrap_or((text, ""));
        let whole = if whole.is_empty() && !fraction.is_empty() { "0" } else { whole };
        if !digits(whole) || !(fraction.is_empty() || digits(fraction)) {
            return None;
        }
        let d = 10_u64.pow(fraction.len() as u32);
        (whole.parse::<u64>().ok()? * d + if fraction.is_empty() { 0 } else { fraction.parse().ok()? }, d)
    };
    let g = gcd(n, d);
    (d > 0 && n <= d).then(|| (n / g.max(1), d / g.max(1)))
}

struct Pending {
    stratum: Option<usize>,
    base: Vec<u64>,
    frac: Vec<u64>,
}

/// `counts[c · splits + s]` for strata of `rows[c]` rows: floor or ceiling of each share, in each stratum and in total.
///
/// # Errors
/// [`Error::Internal`] when the result fails its own check.
pub fn round_strata(rows: &[u64], shares: &Shares, seed: u64) -> Result<Vec<u64>> {
    let q = shares.whole;
    let mut rng = Key::derive(Domain::Assign, seed, &[SPLIT_ROUNDING]).rng();
    let mut counts = vec![0; rows.len() * shares.len()];
    let mut pending: Vec<Pending> = Vec::new();
    let total: u128 = rows.iter().map(|n| u128::from(*n)).sum();
    let dummy: Vec<u64> = shares
        .parts
        .iter()
        .map(|p| {
            let remainder = (u128::from(*p) * (total % u128::from(q))) % u128::from(q);
            ((u128::from(q) - remainder) % u128::from(q)) as u64
        })
        .collect();
    for stratum in 0..=rows.len() {
        let next = match rows.get(stratum) {
            Some(n) => {
                let products = shares.parts.iter().map(|p| u128::from(*p) * u128::from(*n));
                Pending {
                    stratum: Some(stratum),
                    base: products.clone().map(|x| (x / u128::from(q)) as u64).collect(),
                    frac: products.map(|x| (x % u128::from(q)) as u64).collect(),
                }
            }
            None => Pending { stratum: None, base: vec![0; dummy.len()], frac: dummy.clone() },
        };
        pending.push(next);
        while let Some(cycle) = find_cycle(&pending, shares.len()) {
            cancel(&mut pending, &cycle, q, &mut rng);
        }
        pending.retain_mut(|p| {
            if p.frac.iter().any(|f| *f > 0) {
                return true;
            }
            if let Some(c) = p.stratum {
                counts[c * shares.len()..][..shares.len()].copy_from_slice(&p.base);
            }
            false
        });
    }
    if !pending.is_empty() {
        return Err(Error::internal("controlled rounding left fractions"));
    }
    Ok(counts)
}

/// Stream number of this use within the assign domain.
const SPLIT_ROUNDING: u64 = 1;

/// A cycle as edges (pending row, split), alternately entering a split and leaving it.
fn find_cycle(pending: &[Pending], splits: usize) -> Option<Vec<(usize, usize)>> {
    // Nodes: splits 0..splits, then pending rows. Depth-first search for a back edge.
    let nodes = splits + pending.len();
    let mut parent: Vec<Option<usize>> = vec![None; nodes];
    let mut depth = vec![usize::MAX; nodes];
    for root in 0..splits {
        if depth[root] != usize::MAX {
            continue;
        }
        depth[root] = 0;
        let mut stack = vec![root];
        while let Some(node) = stack.pop() {
            let neighbours: Vec<usize> = if node < splits {
                (0..pending.len()).filter(|r| pending[*r].frac[node] > 0).map(|r| splits + r).collect()
            } else {
                (0..splits).filter(|s| pending[node - splits].frac[*s] > 0).collect()
            };
            for next in neighbours {
                if parent[node] == Some(next) {
                    continue;
                }
                if depth[next] == usize::MAX {
                    depth[next] = depth[node] + 1;
                    parent[next] = Some(node);
                    stack.push(next);
                } else {
                    return Some(cycle_edges(node, next, &parent, &depth, splits));
                }
            }
        }
    }
    None
}

/// Edges of the cycle that the edge (a, b) closes in the search tree.
fn cycle_edges(a: usize, b: usize, parent: &[Option<usize>], depth: &[usize], splits: usize) -> Vec<(usize, usize)> {
    let (mut left, mut right) = (vec![a], vec![b]);
    let (mut x, mut y) = (a, b);
    while x != y {
        let step = if depth[x] >= depth[y] { (&mut x, &mut left) } else { (&mut y, &mut right) };
        match parent[*step.0] {
            Some(up) => {
                *step.0 = up;
                step.1.push(up);
            }
            None => break,
        }
    }
    // left: a … top; right: b … top. The cycle is a … top … b and back to a.
    right.pop();
    left.extend(right.into_iter().rev());
    let edge = |u: usize, v: usize| if u < splits { (v - splits, u) } else { (u - splits, v) };
    let mut edges: Vec<(usize, usize)> = left.windows(2).map(|w| edge(w[0], w[1])).collect();
    if let (Some(last), Some(first)) = (left.last(), left.first()) {
        edges.push(edge(*last, *first));
    }
    edges
}

/// Moves fractions along the cycle until one leaves; the direction is drawn so that each count's expectation is its
/// exact share.
fn cancel(pending: &mut [Pending], cycle: &[(usize, usize)], q: u64, rng: &mut KeyedRng) {
    let room = |up_first: bool| {
        let of = |(i, (r, s)): (usize, &(usize, usize))| {
            let frac = pending[*r].frac[*s];
            if (i % 2 == 0) == up_first { q - frac } else { frac }
        };
        cycle.iter().enumerate().map(of).min().unwrap_or(0)
    };
    let (forward, backward) = (room(true), room(false));
    let up_first = rng.below(forward + backward) < backward;
    let step = if up_first { forward } else { backward };
    for (i, (r, s)) in cycle.iter().enumerate() {
        let row = &mut pending[*r];
        if (i % 2 == 0) == up_first {
            row.frac[*s] += step;
            if row.frac[*s] == q {
                row.frac[*s] = 0;
                row.base[*s] += 1;
            }
        } else {
            row.frac[*s] -= step;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #![proptest_config(ProptestConfig::with_cases(400))]
        #[test]
        fn counts_and_totals_are_floor_or_ceiling(
            rows in prop::collection::vec(prop_oneof![0u64..6, 0u64..1000, 0u64..1_000_000_000_000], 0..60),
            parts in prop::collection::vec(1u64..50, 1..7), seed in any::<u64>(),
        ) {
            let sum: u64 = parts.iter().sum();
            let text: Vec<String> = parts.iter().enumerate().map(|(i, p)| format!("s{i}={p}/{sum}")).collect();
            let shares = Shares::parse(&text.join(",")).unwrap();
            let counts = round_strata(&rows, &shares, seed).unwrap();
            for (of_stratum, n) in counts.chunks(shares.len()).zip(&rows) {
                prop_assert_eq!(of_stratum.iter().sum::<u64>(), *n);
                for (s, count) in of_stratum.iter().enumerate() {
                    let (low, high) = shares.bounds(s, *n);
                    prop_assert!((low..=high).contains(count));
                }
            }
            let n: u64 = rows.iter().sum();
            for s in 0..shares.len() {
                let (low, high) = shares.bounds(s, n);
                let total: u64 = counts.iter().skip(s).step_by(shares.len()).sum();
                prop_assert!((low..=high).contains(&total), "split {s}: {total} not in {low}..={high}");
            }
        }
    }

    #[test]
    fn rounding_is_unbiased() {
        let shares = Shares::parse("train=0.8,validation=0.1,test=0.1").unwrap();
        let mut first = [0_u32; 3];
        for seed in 0..2000 {
            let counts = round_strata(&[1, 1, 1], &shares, seed).unwrap();
            for (sum, count) in first.iter_mut().zip(&counts) {
                *sum += *count as u32;
            }
        }
        assert!((1500..1700).contains(&first[0]) && (140..260).contains(&first[1]), "{first:?}");
    }

    #[test]
    fn shares_are_exact_and_bad_ones_are_refused() {
        let shares = Shares::parse("train=0.8, validation=0.1,test=.1").unwrap();
        assert_eq!((shares.fraction(0), shares.fraction(2)), ("4/5".into(), "1/10".into()));
        assert_eq!(shares.bounds(0, 10), (8, 8));
        assert!(Shares::parse("a=1/3,b=1/3,c=1/3").is_ok());
        for bad in [
            "",
            "a",
            "a=",
            "a=x",
            "a=0.5",
            "a=0.5,b=0.6",
            "a=0.5,a=0.5",
            "a=-1",
            "a/b=1",
            "a=0,b=1",
            "a=1.5",
            "a=1/0",
            "a=0.3333333333,b=0.6666666667",
        ] {
            assert!(Shares::parse(bad).is_err(), "{bad}");
        }
    }
}
