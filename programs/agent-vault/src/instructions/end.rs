//! The end of an instruction's data.

use anchor_lang::{
    prelude::*,
    wincode::{config::ConfigCore, error::ReadError, io::Reader, ReadResult, SchemaRead},
    IdlType,
};
use core::mem::MaybeUninit;

/// The last argument of every instruction: no byte, and none behind it.
///
/// The framework reads the arguments that it knows and ignores what follows; then a client of another edition could mean
/// more than this program does. The IDL leaves it out.
#[derive(Clone, Copy, AnchorSerialize, IdlType)]
pub struct End {}

// SAFETY: nothing is read into a value without fields, and `TYPE_META` is the default.
unsafe impl<'de, C: ConfigCore> SchemaRead<'de, C> for End {
    type Dst = Self;

    #[inline(always)]
    fn read(mut reader: impl Reader<'de>, end: &mut MaybeUninit<Self>) -> ReadResult<()> {
        if reader.take_array::<1>().is_ok() {
            return Err(ReadError::TrailingBytes);
        }
        end.write(End {});
        Ok(())
    }
}
