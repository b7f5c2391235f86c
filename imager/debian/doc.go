// Package debian extracts single files from Debian packages that are pinned by version and SHA-256.
//
// This Go package has the name of the Debian suite (Suite), the format of the lock file, and the
// code that gets the package lists of the suite, downloads packages by apt, caches them, and reads
// .deb archives. It takes the mirrors from the apt configuration of the computer. It does not
// install Debian packages, runs no maintainer script, and contains no host name of an archive.
package debian
