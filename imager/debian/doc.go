// Package debian takes single files out of Debian packages that are pinned by version and SHA-256.
//
// It owns the lock file's format, the download through the machine's own apt configuration, the
// cache, and reading .deb archives. It does not install anything, runs no maintainer script, and
// knows no host name of an archive.
package debian
