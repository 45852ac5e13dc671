//! Progress bars, drawn from the board while a mount goes on. Only at a terminal.

use std::io::{self, IsTerminal};
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread;
use std::time::Duration;

use indicatif::{MultiProgress, ProgressBar, ProgressStyle};

use crate::board::{Board, SegmentState};

const EVERY: Duration = Duration::from_millis(80);

/// Runs `work`, with a bar per segment on standard error where that is a terminal.
pub fn with_bars<T>(board: &Board, work: impl FnOnce() -> T) -> T {
    if !io::stderr().is_terminal() {
        return work();
    }
    let done = AtomicBool::new(false);
    thread::scope(|scope| {
        scope.spawn(|| draw(board, &done));
        let result = work();
        done.store(true, Ordering::Relaxed);
        result
    })
}

fn draw(board: &Board, done: &AtomicBool) {
    let all = MultiProgress::new();
    let bars: Vec<ProgressBar> = board
        .snapshot()
        .segments
        .iter()
        .map(|segment| {
            let bar = all.add(ProgressBar::new(segment.size_bytes));
            bar.set_style(style());
            bar.set_prefix(segment.name.clone());
            bar
        })
        .collect();
    while !done.load(Ordering::Relaxed) {
        for (segment, bar) in board.snapshot().segments.iter().zip(&bars) {
            let (word, bytes) = match segment.state {
                SegmentState::Waiting => ("waiting", 0),
                SegmentState::Map => ("mapping", 0),
                SegmentState::Touch => ("touching", segment.touched_bytes),
                SegmentState::Register => ("registering", segment.registered_bytes),
                SegmentState::Ready => ("ready", segment.size_bytes),
                SegmentState::Failed => ("failed", segment.registered_bytes),
            };
            bar.set_message(word);
            bar.set_position(bytes);
        }
        thread::sleep(EVERY);
    }
    for bar in bars {
        bar.finish_and_clear();
    }
}

fn style() -> ProgressStyle {
    ProgressStyle::with_template(
        "{prefix:>12} {bar:32} {binary_bytes:>10}/{binary_total_bytes} {msg}",
    )
    .unwrap_or_else(|_| ProgressStyle::default_bar())
}
