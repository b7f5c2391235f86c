// Package outdated compares the pinned versions with the newest versions: Go modules, the Go
// toolchain, and Debian packages.
//
// Its sources are the go command (versions, retractions), the Go vulnerability database through
// govulncheck, and apt's lists. They use the settings and proxies of the computer. The package
// contains no host name, and changes no file of the repository. Report.Unknown lists the limits of
// the sources.
package outdated
