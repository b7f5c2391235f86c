// Package debian extracts single files from Debian packages that are pinned by version and SHA-256.
//
// It contains the suite of Debian, the format of the lock file, the package lists of the suite, the
// download by apt, the cache, and the reader of .deb archives. The mirrors are from the apt
// configuration of the computer; the suite is a constant. The package does not install Debian
// packages, runs no maintainer script, and contains no host name of an archive.
package debian
