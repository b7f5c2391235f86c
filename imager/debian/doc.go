// Package debian extracts single files from Debian packages that are pinned by version and SHA-256.
//
// It owns the suite of Debian, the lock file's format, the package lists of the suite and the
// download by apt, the cache, and the reader of .deb archives. The mirror is from the computer's
// apt configuration, the suite is not. It does not install packages, runs no maintainer script, and
// contains no host name of an archive.
package debian
