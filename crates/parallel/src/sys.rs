//! Functions that differ between systems: the name of the host, and how a library is opened whose plugins need its functions.

// A library runs initialisers when it is opened.
#![allow(unsafe_code)]

use libloading::{Error, Library};

#[cfg(unix)]
mod unix {
    use super::*;
    use libloading::os::unix::{Library as Unix, RTLD_GLOBAL, RTLD_NOW};

    /// The name of this host, which ranks of one host share.
    pub fn host_name() -> Vec<u8> {
        rustix::system::uname().nodename().to_bytes().to_vec()
    }

    /// Opens MPI's library. Open MPI's plugins find its functions among those of the program.
    pub fn open_mpi(name: &str) -> Result<Library, Error> {
        // SAFETY: MPI's initialisers ask nothing of a program.
        Ok(unsafe { Unix::open(Some(name), RTLD_NOW | RTLD_GLOBAL) }?.into())
    }
}

#[cfg(not(unix))]
mod other {
    use super::*;

    pub fn host_name() -> Vec<u8> {
        std::env::var_os("COMPUTERNAME").unwrap_or_default().into_encoded_bytes()
    }

    pub fn open_mpi(name: &str) -> Result<Library, Error> {
        // SAFETY: MPI's initialisers ask nothing of a program.
        unsafe { Library::new(name) }
    }
}

#[cfg(not(unix))]
pub use other::{host_name, open_mpi};
#[cfg(unix)]
pub use unix::{host_name, open_mpi};
