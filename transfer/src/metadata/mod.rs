//! Who has what: descriptors peer to peer, and by an HTTP metadata server; both sides of each.

mod client;
mod endpoint;
mod http;
mod publication;

pub use client::{AskError, descriptor_of, notify, probe};
pub use endpoint::{Described, Endpoint, EndpointCounters, EndpointSnapshot};
pub use http::{HttpError, MetadataServer};
pub use publication::{Publication, PublicationCounters, PublicationSnapshot, PublishFailed};
