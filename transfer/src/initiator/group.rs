//! What one peer's operations wait in, and who of its lanes does what: admission, the queue, one
//! connect probe, cool-down. Pure synchronisation: loom goes through its schedules.

use std::collections::VecDeque;
use std::io;
use std::mem::take;
use std::task::{Context, Poll, Waker};
use std::time::{Duration, Instant};

use super::error::TransferError;
use super::sync::{AtomicBool, Mutex, Ordering, lock};

/// What a group allows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Bounds {
    /// Operations in the queue.
    pub(super) queue: usize,
    /// Operations that wait for a place in the queue.
    pub(super) pending: usize,
    /// How long each of those waits.
    pub(super) admission: Duration,
    /// How long a peer that could not be reached is left alone.
    pub(super) cool_down: Duration,
}

/// The operations for one peer, and the lanes that carry them.
#[derive(Debug)]
pub(super) struct Group<T> {
    bounds: Bounds,
    state: Mutex<State<T>>,
    /// Set before the lanes are woken; they look at it each time that they are polled.
    closed: AtomicBool,
}

#[derive(Debug)]
struct State<T> {
    queue: VecDeque<T>,
    pending: VecDeque<(Instant, T)>,
    lanes: Vec<Lane>,
    keeper: Option<Waker>,
    cooling: Option<(Instant, io::ErrorKind)>,
}

#[derive(Debug)]
struct Lane {
    link: Link,
    /// Not to connect before.
    not_before: Option<Instant>,
    waker: Option<Waker>,
    /// It has nothing to do until it is woken.
    waits: bool,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Link {
    Down,
    Connecting,
    Up,
}

/// What a lane does next.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Next<T> {
    /// Connect, and tell [`Group::connected`] or [`Group::unreachable`].
    Connect,
    /// Carry this operation.
    Carry(T),
    /// End: the group is closed.
    End,
}

/// What the keeper does next.
#[derive(Debug)]
pub(super) struct Keeping<T> {
    /// Operations that waited for admission for too long.
    pub(super) expired: Vec<T>,
    /// When to look again; without it, when woken.
    pub(super) again: Option<Instant>,
    /// The group is closed: look no more.
    pub(super) closed: bool,
}

/// What was not taken, and why.
pub(super) type Refused<T> = Vec<(T, TransferError)>;

impl<T> Group<T> {
    /// A group with so many lanes, none of them connected.
    pub(super) fn new(bounds: Bounds, lanes: usize) -> Self {
        let lane = || Lane {
            link: Link::Down,
            not_before: None,
            waker: None,
            waits: false,
        };
        Self {
            bounds,
            state: Mutex::new(State {
                queue: VecDeque::new(),
                pending: VecDeque::new(),
                lanes: (0..lanes).map(|_| lane()).collect(),
                keeper: None,
                cooling: None,
            }),
            closed: AtomicBool::new(false),
        }
    }

    /// Takes operations up, in this order. Those beyond the queue's bound wait for admission.
    pub(super) fn submit(
        &self,
        operations: impl IntoIterator<Item = T>,
        now: Instant,
    ) -> Refused<T> {
        let mut refused = Vec::new();
        let mut state = lock(&self.state);
        let waited = !state.pending.is_empty();
        for operation in operations {
            if let Err(why) = self.admissible(&mut state, now) {
                refused.push((operation, why));
            } else if state.queue.len() < self.bounds.queue {
                state.queue.push_back(operation);
            } else {
                state
                    .pending
                    .push_back((now + self.bounds.admission, operation));
            }
        }
        let mut wakers = state.wake_for_queue(now);
        if !waited && !state.pending.is_empty() {
            wakers.extend(state.keeper.take());
        }
        wakers.extend(state.keeper_for_reconnect(now));
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        refused
    }

    /// Takes an operation back that a lane had taken; it is the next. Given back where the group is
    /// closed.
    pub(super) fn return_first(&self, operation: T, now: Instant) -> Option<T> {
        let mut state = lock(&self.state);
        if self.is_closed() {
            return Some(operation);
        }
        state.queue.push_front(operation);
        let wakers = state.wake_for_queue(now);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        None
    }

    /// What this lane does next. While there is nothing, the context's task is woken when there is.
    pub(super) fn poll_next(
        &self,
        lane: usize,
        now: Instant,
        context: &Context<'_>,
    ) -> Poll<Next<T>> {
        let mut state = lock(&self.state);
        state.set_waker(lane, context.waker());
        if self.is_closed() {
            return Poll::Ready(Next::End);
        }
        let next = state.next(lane, now);
        match next {
            None => {
                if let Some(lane) = state.lanes.get_mut(lane) {
                    lane.waits = true;
                }
                let keeper = state.keeper_for_reconnect(now);
                drop(state);
                if let Some(keeper) = keeper {
                    keeper.wake();
                }
                Poll::Pending
            }
            Some(next) => {
                if let Some(lane) = state.lanes.get_mut(lane) {
                    lane.waits = false;
                }
                Poll::Ready(next)
            }
        }
    }

    /// The lane's connection is there.
    pub(super) fn connected(&self, lane: usize, now: Instant) {
        let mut state = lock(&self.state);
        if let Some(lane) = state.lanes.get_mut(lane) {
            lane.link = Link::Up;
            lane.not_before = None;
        }
        state.cooling = None;
        let wakers = state.wake_for_queue(now);
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
    }

    /// The lane could not connect. Where no other lane is or will be connected, the peer is left
    /// alone for a while, and what was queued is given back with the reason.
    pub(super) fn unreachable(&self, lane: usize, kind: io::ErrorKind, now: Instant) -> Vec<T> {
        let until = now + self.bounds.cool_down;
        let mut state = lock(&self.state);
        if let Some(lane) = state.lanes.get_mut(lane) {
            lane.link = Link::Down;
            lane.not_before = Some(until);
        }
        if state.lanes.iter().any(|lane| lane.link != Link::Down) {
            return Vec::new();
        }
        state.cooling = Some((until, kind));
        for lane in &mut state.lanes {
            lane.not_before = Some(until);
        }
        state.drain()
    }

    /// The lane's connection is gone.
    pub(super) fn disconnected(&self, lane: usize) {
        if let Some(lane) = lock(&self.state).lanes.get_mut(lane) {
            lane.link = Link::Down;
        }
    }

    /// Gives operations back that waited for admission for too long, and wakes lanes that may
    /// connect again. For one task of the group, which asks again when woken or at the time said.
    pub(super) fn keep(&self, now: Instant, context: &Context<'_>) -> Keeping<T> {
        let mut state = lock(&self.state);
        state.keeper = Some(context.waker().clone());
        let mut expired = Vec::new();
        while state.pending.front().is_some_and(|(by, _)| *by <= now) {
            expired.extend(state.pending.pop_front().map(|(_, operation)| operation));
        }
        let wakers = state.wake_for_queue(now);
        let first_pending = state.pending.front().map(|(by, _)| *by);
        let first_lane = match state.queue.is_empty() {
            true => None,
            false => state.first_reconnect(now),
        };
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        Keeping {
            expired,
            again: first_pending.into_iter().chain(first_lane).min(),
            closed: self.is_closed(),
        }
    }

    /// Lets go of operations that are over; those that waited for admission move up.
    pub(super) fn forget(&self, over: impl Fn(&T) -> bool) {
        let mut state = lock(&self.state);
        let (gone, kept) = take(&mut state.queue).into_iter().partition(&over);
        state.queue = kept;
        let (gone_pending, kept) = take(&mut state.pending)
            .into_iter()
            .partition(|(_, operation)| over(operation));
        state.pending = kept;
        while state.queue.len() < self.bounds.queue && state.promote() {}
        drop(state);
        // What an operation owns is let go of outside the lock.
        let gone: (VecDeque<T>, VecDeque<(Instant, T)>) = (gone, gone_pending);
        drop(gone);
    }

    /// Takes no more operations, gives back those that wait, and wakes every lane: one that carries
    /// an operation stops, and settles it.
    pub(super) fn close(&self) -> Vec<T> {
        let mut state = lock(&self.state);
        self.closed.store(true, Ordering::Release);
        let mut wakers: Vec<Waker> = state.keeper.take().into_iter().collect();
        for lane in &mut state.lanes {
            wakers.extend(lane.waker.take());
        }
        let left = state.drain();
        drop(state);
        wakers.into_iter().for_each(Waker::wake);
        left
    }

    /// Whether lanes are to end.
    pub(super) fn is_closed(&self) -> bool {
        self.closed.load(Ordering::Acquire)
    }

    /// Operations in the queue, operations that wait for admission, and connected lanes.
    pub(super) fn depth(&self) -> (usize, usize, usize) {
        let state = lock(&self.state);
        let up = state.lanes.iter().filter(|lane| lane.link == Link::Up);
        (state.queue.len(), state.pending.len(), up.count())
    }

    fn admissible(&self, state: &mut State<T>, now: Instant) -> Result<(), TransferError> {
        if self.is_closed() {
            return Err(TransferError::ShutDown);
        }
        match state.cooling {
            Some((until, kind)) if now < until => {
                let cool_down = self.bounds.cool_down;
                return Err(TransferError::CoolingDown { kind, cool_down });
            }
            _ => state.cooling = None,
        }
        let (queued, pending) = (state.queue.len(), state.pending.len());
        if queued >= self.bounds.queue && pending >= self.bounds.pending {
            return Err(TransferError::QueueFull { queued, pending });
        }
        Ok(())
    }
}

impl<T> State<T> {
    fn set_waker(&mut self, lane: usize, waker: &Waker) {
        let Some(lane) = self.lanes.get_mut(lane) else {
            return;
        };
        match &mut lane.waker {
            Some(known) => known.clone_from(waker),
            none => *none = Some(waker.clone()),
        }
    }

    /// What a lane does next; `None` where it waits.
    fn next(&mut self, lane: usize, now: Instant) -> Option<Next<T>> {
        if self.queue.is_empty() {
            return None;
        }
        let link = self.lanes.get(lane)?.link;
        if link == Link::Up {
            let operation = self.queue.pop_front()?;
            self.promote();
            return Some(Next::Carry(operation));
        }
        if !self.may_connect(lane, now) {
            return None;
        }
        self.lanes.get_mut(lane)?.link = Link::Connecting;
        Some(Next::Connect)
    }

    /// One lane probes; the others connect once one of them is up.
    fn may_connect(&self, lane: usize, now: Instant) -> bool {
        let one_is = |link| self.lanes.iter().any(|lane| lane.link == link);
        let waited = |lane: &Lane| lane.not_before.is_none_or(|time| time <= now);
        self.lanes.get(lane).is_some_and(waited) && (one_is(Link::Up) || !one_is(Link::Connecting))
    }

    /// When the first lane that waits for it may connect again.
    fn first_reconnect(&self, now: Instant) -> Option<Instant> {
        let down = self.lanes.iter().filter(|lane| lane.link == Link::Down);
        let times = down.filter_map(|lane| lane.not_before);
        times.filter(|time| *time > now).min()
    }

    /// The keeper, where something is queued and a lane waits for its time to connect again.
    fn keeper_for_reconnect(&mut self, now: Instant) -> Option<Waker> {
        if self.queue.is_empty() || self.first_reconnect(now).is_none() {
            return None;
        }
        self.keeper.take()
    }

    /// The lanes to wake for what is queued: connected ones first, then such as may connect.
    fn wake_for_queue(&mut self, now: Instant) -> Vec<Waker> {
        let mut wakers = Vec::new();
        for link in [Link::Up, Link::Down] {
            for index in 0..self.lanes.len() {
                if wakers.len() >= self.queue.len() {
                    return wakers;
                }
                let fits = self.lanes[index].waits
                    && self.lanes[index].link == link
                    && (link == Link::Up || self.may_connect(index, now));
                if fits {
                    let lane = &mut self.lanes[index];
                    lane.waits = false;
                    wakers.extend(lane.waker.clone());
                }
            }
        }
        wakers
    }

    /// The first that waits for admission moves into the queue.
    fn promote(&mut self) -> bool {
        let first = self.pending.pop_front();
        let moved = first.is_some();
        self.queue.extend(first.map(|(_, operation)| operation));
        moved
    }

    fn drain(&mut self) -> Vec<T> {
        let queued = self.queue.drain(..);
        let pending = self.pending.drain(..).map(|(_, operation)| operation);
        queued.chain(pending).collect()
    }
}
