//! A macro for enums in which every variant has one fixed string. Each enum is written as a table of variants and
//! strings.

/// Defines an enum from a table of variants and strings, with `ALL`, `as_str`, `Display`, `Serialize` and `FromStr`.
macro_rules! string_enum {
    (
        $(#[$meta:meta])*
        pub enum $name:ident {
            $($(#[$variant_meta:meta])* $variant:ident = $text:literal,)+
        }
    ) => {
        $(#[$meta])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub enum $name {
            $($(#[$variant_meta])* $variant,)+
        }

        impl $name {
            /// Every variant, in the order in which the enum lists them.
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            /// Returns the string that represents the variant in files and output.
            pub const fn as_str(self) -> &'static str {
                match self {
                    $(Self::$variant => $text,)+
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.pad(self.as_str())
            }
        }

        impl serde::Serialize for $name {
            fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
                serializer.serialize_str(self.as_str())
            }
        }

        impl std::str::FromStr for $name {
            type Err = crate::text::string_enum::UnknownName;

            fn from_str(text: &str) -> Result<Self, Self::Err> {
                match text {
                    $($text => Ok(Self::$variant),)+
                    _ => Err(crate::text::string_enum::UnknownName {
                        name: text.to_string(),
                        known: &[$($text),+],
                    }),
                }
            }
        }
    };
}
pub(crate) use string_enum;

/// The error for a string that no variant of the enum has.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("`{name}` is not a known value; known values are {}", known.join(", "))]
pub struct UnknownName {
    /// The string that was parsed.
    pub name: String,
    /// The strings of all variants.
    pub known: &'static [&'static str],
}
