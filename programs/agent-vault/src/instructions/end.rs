//! The end of an instruction's data.

use anchor_lang::{
    prelude::*,
    wincode::{config::ConfigCore, error::ReadError, io::Reader, ReadResult, SchemaRead},
    IdlType,
};
use core::mem::MaybeUninit;

/// The last argument of every instruction. It has no bytes, and no bytes may follow it.
///
/// The framework reads the arguments that it knows and ignores the rest. Without this check, a client of a different
/// version could send further arguments, and the program would run without them. The IDL omits this argument.
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
