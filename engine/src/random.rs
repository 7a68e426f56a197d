//! Random numbers that nobody outside can foresee, for choices that no client may adapt to.

use std::collections::hash_map::RandomState;
use std::hash::{BuildHasher, Hasher};

/// `SplitMix64` by Vigna.
pub struct Random {
    state: u64,
}

impl Default for Random {
    fn default() -> Self {
        Random { state: RandomState::new().build_hasher().finish() } // the keys of the standard library's maps are random
    }
}

impl Random {
    fn bits(&mut self) -> u64 {
        self.state = self.state.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut mixed = self.state;
        mixed = (mixed ^ (mixed >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        mixed = (mixed ^ (mixed >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        mixed ^ (mixed >> 31)
    }

    /// Returns a number from 0 up to 1, without 1.
    pub fn fraction(&mut self) -> f64 {
        (self.bits() >> 11) as f64 / (1_u64 << 53) as f64
    }

    /// Returns a whole number from 1 to `2 * mean - 1`, each with the same probability.
    pub fn around(&mut self, mean: u64) -> u64 {
        1 + self.bits() % (2 * mean - 1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_within_their_bounds_and_have_their_mean() {
        let mut random = Random::default();
        let found: Vec<u64> = (0..20_000).map(|_| random.around(7)).collect();
        assert_eq!((found.iter().min(), found.iter().max()), (Some(&1), Some(&13)));
        let mean = found.iter().sum::<u64>() as f64 / found.len() as f64;
        assert!((6.8..7.2).contains(&mean), "{mean}");
        assert!((0..1000).all(|_| (0.0..1.0).contains(&random.fraction())));
    }
}
