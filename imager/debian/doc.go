// Package debian extracts single files from Debian packages that are pinned by version and SHA-256.
//
// It owns the lock file's format, the download through the computer's own apt configuration, the
// cache, and the reader of .deb archives. It does not install packages, runs no maintainer script,
// and contains no host name of an archive.
package debian
