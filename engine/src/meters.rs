//! Meters. Each has the credit that can be charged to a bucket without the control plane, and the charges since then.
//!
//! The control plane grants each meter a credit: an amount of which it knows that every charge within it is allowed.
//! A charge within the credit is recorded with its time. A charge beyond the credit is refused, and the connection
//! returns to the control plane, which decides. The control plane collects the charges, and records them in the bucket
//! in the order of their times.

use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex, MutexGuard, PoisonError, RwLock};

/// A charge: the time in milliseconds, and the amount in the meter's unit.
pub type Charge = (i64, i64);

/// Locks a mutex whose content is valid even if a thread has panicked while it held the lock.
pub fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

#[derive(Default)]
struct Account {
    credit: i64,
    /// Whether the control plane is deciding about a charge itself, and will grant a new credit afterwards.
    is_withdrawn: bool,
    charges: Vec<Charge>,
    listed: bool,
}

/// The answer to a charge.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    Charged,
    /// The credit is smaller; nothing was charged.
    Refused,
    /// The credit is withdrawn for a moment; nothing was charged. Ask again.
    Later,
}

impl Account {
    fn take_charges(&mut self) -> Vec<Charge> {
        self.listed = false;
        let mut charges = std::mem::take(&mut self.charges);
        charges.sort_by_key(|charge| charge.0); // a thread may read the clock before another one, and charge after it
        charges
    }

    fn answer(&self, amount: i64) -> Answer {
        if self.is_withdrawn {
            Answer::Later
        } else if self.credit >= amount {
            Answer::Charged
        } else {
            Answer::Refused
        }
    }
}

/// The credit and the charges of one bucket. Threads share it.
pub struct Meter {
    id: u64,
    account: Mutex<Account>,
    charged: Arc<Mutex<Vec<u64>>>,
}

impl Meter {
    /// Returns what the answer to a charge of `amount` would be now.
    #[must_use]
    pub fn answer(&self, amount: i64) -> Answer {
        lock(&self.account).answer(amount)
    }

    /// Charges `amount` at `now_ms`. Charges of one millisecond are noted as their sum.
    #[must_use]
    pub fn charge(&self, now_ms: i64, amount: i64) -> Answer {
        let mut account = lock(&self.account);
        let answer = account.answer(amount);
        if answer == Answer::Charged {
            self.note(&mut account, now_ms, amount);
        }
        answer
    }

    /// Charges two different meters at `now_ms`, or none of them.
    #[must_use]
    pub fn charge_both(one: (&Meter, i64), other: (&Meter, i64), now_ms: i64) -> Answer {
        let (first, second) = if one.0.id < other.0.id { (one, other) } else { (other, one) }; // all lock in this order
        let (mut account, mut second_account) = (lock(&first.0.account), lock(&second.0.account));
        let answers = [account.answer(first.1), second_account.answer(second.1)];
        if let Some(answer) = [Answer::Refused, Answer::Later].into_iter().find(|answer| answers.contains(answer)) {
            return answer;
        }
        first.0.note(&mut account, now_ms, first.1);
        second.0.note(&mut second_account, now_ms, second.1);
        Answer::Charged
    }

    fn note(&self, account: &mut Account, now_ms: i64, amount: i64) {
        account.credit -= amount;
        match account.charges.last_mut() {
            Some((at_ms, sum)) if *at_ms == now_ms => *sum += amount,
            _ => account.charges.push((now_ms, amount)),
        }
        if !account.listed {
            account.listed = true;
            lock(&self.charged).push(self.id);
        }
    }

    /// Returns the charges since the last call, in the order of their times. Further ones are made within the credit that
    /// is left: it is allowed whether the earlier ones are recorded yet or not.
    pub fn take_charges(&self) -> Vec<Charge> {
        lock(&self.account).take_charges()
    }

    /// Returns what `take_charges` does, and withdraws the credit until `grant`.
    pub fn withdraw(&self) -> Vec<Charge> {
        let mut account = lock(&self.account);
        account.is_withdrawn = true;
        account.take_charges()
    }

    /// Grants `credit`, which the bucket has after all charges that `take_charges` or `withdraw` returned were recorded.
    /// Charges made since then are subtracted.
    pub fn grant(&self, credit: i64) {
        let mut account = lock(&self.account);
        account.is_withdrawn = false;
        account.credit = account.charges.iter().fold(credit, |left, charge| left.saturating_sub(charge.1));
    }
}

/// All meters, by id.
#[derive(Default)]
pub struct Meters {
    next_id: u64,
    by_id: HashMap<u64, Arc<Meter>>,
    charged: Arc<Mutex<Vec<u64>>>,
}

impl Meters {
    /// Creates a meter without credit; returns its id.
    pub fn create(&mut self) -> u64 {
        self.next_id += 1;
        let meter = Meter { id: self.next_id, account: Mutex::default(), charged: Arc::clone(&self.charged) };
        self.by_id.insert(self.next_id, Arc::new(meter));
        self.next_id
    }

    #[must_use]
    pub fn get(&self, id: u64) -> Option<&Arc<Meter>> {
        self.by_id.get(&id)
    }

    pub fn remove(&mut self, id: u64) {
        self.by_id.remove(&id);
    }

    /// Returns the ids of the meters with charges since the last call.
    #[must_use]
    pub fn charged(&self) -> Vec<u64> {
        std::mem::take(&mut *lock(&self.charged))
    }
}

/// Producer ids that cost nothing for some time, since they were charged. Threads share it.
#[derive(Default)]
pub struct SeenIds {
    until_ms: RwLock<HashMap<i64, i64>>,
    is_closed: AtomicBool,
}

/// The most ids that are kept. When one more is added, all others are removed.
const MOST_SEEN_IDS: usize = 4096;

impl SeenIds {
    /// Returns whether `id` costs nothing at `now_ms`: it was charged before, or it is below 0, which stands for no id.
    #[must_use]
    pub fn contains(&self, id: i64, now_ms: i64) -> bool {
        if id < 0 {
            return true;
        }
        let ids = self.until_ms.read().unwrap_or_else(PoisonError::into_inner);
        ids.get(&id).is_some_and(|until_ms| now_ms < *until_ms)
    }

    pub fn add(&self, id: i64, until_ms: i64) {
        let mut ids = self.until_ms.write().unwrap_or_else(PoisonError::into_inner);
        if ids.len() >= MOST_SEEN_IDS {
            ids.clear();
        }
        ids.insert(id, until_ms);
    }

    /// Leaves each Produce request to the control plane from now on.
    pub fn close(&self) {
        self.is_closed.store(true, Ordering::Relaxed);
    }

    #[must_use]
    pub fn is_closed(&self) -> bool {
        self.is_closed.load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::{Answer, Charge, Meter, Meters, SeenIds};

    fn settle(meter: &Meter, credit: Option<i64>) -> Vec<Charge> {
        let found = meter.withdraw();
        if let Some(credit) = credit {
            meter.grant(credit);
        }
        found
    }

    #[test]
    fn charges_beyond_the_credit_are_refused_and_take_nothing() {
        let mut meters = Meters::default();
        let id = meters.create();
        let meter = meters.get(id).unwrap();
        assert_eq!(meter.charge(0, 1), Answer::Refused);
        assert!(settle(meter, Some(10)).is_empty());
        assert_eq!(meter.charge(0, 4), Answer::Charged);
        assert_eq!(meter.charge(0, 7), Answer::Refused);
        assert_eq!((meter.answer(6), meter.answer(7)), (Answer::Charged, Answer::Refused));
        assert_eq!(meter.charge(0, 6), Answer::Charged);
        assert_eq!(settle(meter, None), [(0, 10)]);
        assert_eq!(meter.charge(0, 1), Answer::Later);
        assert!(settle(meter, Some(0)).is_empty());
        assert_eq!(meter.charge(0, 1), Answer::Refused);
    }

    #[test]
    fn two_meters_are_charged_together_or_not_at_all() {
        let mut meters = Meters::default();
        let (first, second) = (meters.create(), meters.create());
        let (first, second) = (meters.get(first).unwrap(), meters.get(second).unwrap());
        settle(first, Some(10));
        settle(second, Some(5));
        assert_eq!(Meter::charge_both((second, 5), (first, 4), 1), Answer::Charged);
        assert_eq!(Meter::charge_both((first, 6), (second, 1), 1), Answer::Refused);
        assert_eq!((settle(first, None), settle(second, Some(0))), (vec![(1, 4)], vec![(1, 5)]));
        assert_eq!(Meter::charge_both((first, 6), (second, 1), 1), Answer::Refused);
        settle(second, Some(1));
        assert_eq!(Meter::charge_both((first, 6), (second, 1), 1), Answer::Later);
        assert_eq!((settle(first, None), settle(second, None)), (vec![], vec![]));
    }

    #[test]
    fn charges_are_collected_once_and_in_order() {
        let mut meters = Meters::default();
        let (first, second) = (meters.create(), meters.create());
        let meter = meters.get(first).unwrap();
        settle(meter, Some(100));
        for (now_ms, amount) in [(5, 1), (5, 2), (7, 4), (6, 8)] {
            assert_eq!(meter.charge(now_ms, amount), Answer::Charged);
        }
        assert_eq!(meters.charged(), [first]);
        assert_eq!(settle(meter, Some(100)), [(5, 3), (6, 8), (7, 4)]);
        assert!(meters.charged().is_empty());
        assert_eq!(meter.charge(8, 1), Answer::Charged);
        settle(meters.get(second).unwrap(), Some(1));
        assert_eq!(meters.get(second).unwrap().charge(8, 1), Answer::Charged);
        assert_eq!(meters.charged(), [first, second]);
    }

    #[test]
    fn what_is_charged_while_others_are_recorded_is_a_part_of_the_new_credit() {
        let mut meters = Meters::default();
        let id = meters.create();
        let meter = meters.get(id).unwrap();
        settle(meter, Some(10));
        assert_eq!(meter.charge(0, 4), Answer::Charged);
        assert_eq!(meters.charged(), [id]);
        assert_eq!(meter.take_charges(), [(0, 4)]);
        assert_eq!(meter.charge(1, 7), Answer::Refused);
        assert_eq!(meter.charge(1, 5), Answer::Charged);
        meter.grant(8);
        assert_eq!(meters.charged(), [id]);
        assert_eq!((meter.answer(3), meter.answer(4)), (Answer::Charged, Answer::Refused));
        assert_eq!(meter.withdraw(), [(1, 5)]);
        assert_eq!(meter.charge(2, 1), Answer::Later);
        meter.grant(i64::MIN);
        assert_eq!(meter.charge(2, 1), Answer::Refused);
    }

    #[test]
    fn ids_are_seen_until_their_time() {
        let ids = SeenIds::default();
        assert!(ids.contains(-1, 0));
        assert!(!ids.contains(7, 0));
        ids.add(7, 100);
        assert!(ids.contains(7, 99));
        assert!(!ids.contains(7, 100));
    }
}
