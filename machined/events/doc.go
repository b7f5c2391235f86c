// Package events holds the reports of machined about its own run: the newest events (Log), the
// progress of the boot (Progress) and the recovered panics (Panics).
//
// The reports are in memory only. machined/logship sends the events to other hosts, and the audit
// log of machined/api records calls and panics on the disk.
package events
