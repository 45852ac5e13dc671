//! Prints the comparison and the factors; writes the picture to the path given.

use siding_simulator::{best_factor, compare, factor_scores, p5_settings};

fn main() -> std::io::Result<()> {
    let report = compare();
    print!("{}", report.table());
    let factors: Vec<f64> = (8..=26).map(|step| f64::from(step) / 20.0).collect();
    let scores = factor_scores(&p5_settings(), &factors);
    for score in &scores {
        println!(
            "factor {:.2}: mean {:.3} worst {:.3} of the best cap's time, caps {:?}",
            score.factor,
            score.mean_over_best(),
            score.worst_over_best(),
            score.caps
        );
    }
    if let Some(best) = best_factor(&scores) {
        println!("best factor {:.2}", best.factor);
    }
    if let Some(path) = std::env::args().nth(1) {
        std::fs::write(path, report.svg())?;
    }
    println!("{}", report.last_line());
    Ok(())
}
