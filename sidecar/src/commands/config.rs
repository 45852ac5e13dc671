//! `siding config`.

use std::path::PathBuf;

use clap::{Args, Subcommand};

use crate::config;
use crate::failure::Failure;
use crate::logging;
use crate::output;

/// Arguments of `siding config`.
#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(subcommand)]
    command: ConfigCommand,
}

#[derive(Debug, Subcommand)]
enum ConfigCommand {
    /// Check a configuration file and print what is in force, defaults included
    Check {
        /// The file (YAML)
        #[arg(value_name = "FILE")]
        file: PathBuf,
    },
    /// Print the JSON schema of the configuration file, each field with its meaning and default
    Schema,
}

impl ConfigArgs {
    pub(super) fn run(self) -> Result<(), Failure> {
        match self.command {
            ConfigCommand::Check { file } => {
                let config = config::load(&file).map_err(Failure::input)?;
                logging::check(&config.logging.level).map_err(Failure::input)?;
                output::print(config::to_yaml(&config).map_err(Failure::failed)?)
            }
            ConfigCommand::Schema => {
                let text =
                    serde_json::to_string_pretty(&config::schema()).map_err(Failure::failed)?;
                output::print(text + "\n")
            }
        }
    }
}
