//! Writes the custom resource definitions as YAML: `crdgen DIRECTORY`, or `crdgen --check
//! DIRECTORY`, which ends with 1 where a file there is not what it would write.

#![forbid(unsafe_code)]

use std::path::{Path, PathBuf};
use std::process::ExitCode;
use std::{env, fs, io};

use siding_crds::api::definitions;

fn main() -> ExitCode {
    let arguments: Vec<String> = env::args().skip(1).collect();
    let arguments: Vec<&str> = arguments.iter().map(String::as_str).collect();
    let outcome = match arguments[..] {
        ["--check", directory] => check(Path::new(directory)),
        [directory] if !directory.starts_with('-') => write(Path::new(directory)),
        _ => {
            eprintln!("usage: crdgen [--check] DIRECTORY");
            return ExitCode::from(2);
        }
    };
    match outcome {
        Ok(()) => ExitCode::SUCCESS,
        Err(error) => {
            eprintln!("crdgen: {error}");
            ExitCode::FAILURE
        }
    }
}

/// Each file and its text.
fn files(directory: &Path) -> io::Result<Vec<(PathBuf, String)>> {
    definitions()
        .map_err(io::Error::other)?
        .into_iter()
        .map(|(name, definition)| {
            let yaml = serde_saphyr::to_string(&definition).map_err(io::Error::other)?;
            let text = format!("# Made by crdgen from crds/src/api; see README.md.\n{yaml}");
            Ok((directory.join(name), text))
        })
        .collect()
}

fn write(directory: &Path) -> io::Result<()> {
    fs::create_dir_all(directory)?;
    for (path, text) in files(directory)? {
        fs::write(&path, text)?;
        println!("{}", path.display());
    }
    Ok(())
}

fn check(directory: &Path) -> io::Result<()> {
    for (path, text) in files(directory)? {
        if fs::read_to_string(&path).ok().as_deref() != Some(&text) {
            let message = format!(
                "{} is not what crds/src/api says; run: cargo run -p siding-crds --features api --bin crdgen {}",
                path.display(),
                directory.display()
            );
            return Err(io::Error::other(message));
        }
    }
    Ok(())
}
