//! The karate club.

/// A club of 34 members: who met whom outside of the club, and who left it with whom.
#[derive(Clone, Copy, Debug)]
pub struct KarateClub {
    /// The 78 pairs of members that met, each once and the lower number first.
    pub edges: &'static [[i64; 2]],
    /// For each member the club after the split: 0 for the instructor's (member 0), 1 for the officers' (member 33).
    pub clubs: [i64; 34],
}

/// The members of a karate club, observed over three years, in which it split.
///
/// Source: W. W. Zachary 1977, "An information flow model for conflict and fission in small groups", Journal of Anthropological Research
/// 33, figures 1 and 3. Members are numbered from 0.
pub fn karate_club() -> KarateClub {
    let mut clubs = [1; 34];
    for member in [0, 1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13, 16, 17, 19, 21] {
        clubs[member] = 0;
    }
    KarateClub { edges: EDGES, clubs }
}

#[rustfmt::skip]
const EDGES: &[[i64; 2]] = &[
    [0, 1], [0, 2], [0, 3], [0, 4], [0, 5], [0, 6], [0, 7], [0, 8], [0, 10], [0, 11], [0, 12], [0, 13], [0, 17], [0, 19], [0, 21],
    [0, 31], [1, 2], [1, 3], [1, 7], [1, 13], [1, 17], [1, 19], [1, 21], [1, 30], [2, 3], [2, 7], [2, 8], [2, 9], [2, 13], [2, 27],
    [2, 28], [2, 32], [3, 7], [3, 12], [3, 13], [4, 6], [4, 10], [5, 6], [5, 10], [5, 16], [6, 16], [8, 30], [8, 32], [8, 33],
    [9, 33], [13, 33], [14, 32], [14, 33], [15, 32], [15, 33], [18, 32], [18, 33], [19, 33], [20, 32], [20, 33], [22, 32], [22, 33],
    [23, 25], [23, 27], [23, 29], [23, 32], [23, 33], [24, 25], [24, 27], [24, 31], [25, 31], [26, 29], [26, 33], [27, 33], [28, 31],
    [28, 33], [29, 32], [29, 33], [30, 32], [30, 33], [31, 32], [31, 33], [32, 33],
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_club_is_complete() {
        let KarateClub { edges, clubs } = karate_club();
        assert_eq!(edges.len(), 78);
        assert!(edges.windows(2).all(|two| two[0] < two[1]) && edges.iter().all(|[a, b]| a < b));
        let degree = |member| edges.iter().flatten().filter(|other| **other == member).count();
        assert_eq!([0, 33, 32, 2, 11].map(degree), [16, 17, 12, 10, 1]);
        assert_eq!(clubs.iter().sum::<i64>(), 17);
        // The least cut has 10 edges. Member 8, who has three friends in the other club and two in his own, adds one.
        let within = edges.iter().filter(|[a, b]| clubs[*a as usize] == clubs[*b as usize]).count();
        assert_eq!(within, 67);
    }
}
