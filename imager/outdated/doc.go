// Package outdated compares the pinned versions with the newest versions: Go modules, the Go
// toolchain, and Debian packages.
//
// Its sources are the go command (versions, retractions), the Go vulnerability database through
// govulncheck, and apt's lists. It reads them with the settings and proxies of the computer,
// contains no host name, and changes no file of the repository. Report.Unknown has the limits of
// these sources.
package outdated
