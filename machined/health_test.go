package main

import (
	"strings"
	"testing"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/health"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/superblock"
)

// TestStorageCheck checks that a file system with an error is unhealthy, and that a repaired file
// system is healthy and stays visible.
func TestStorageCheck(t *testing.T) {
	broken := disk.FilesystemErrors{Label: "DATA", Device: "/dev/vda5", Faults: superblock.Errors{Marked: true, Count: 1, First: superblock.Error{Function: "ext4_lookup"}}}
	repaired := broken
	repaired.Checked = true
	for _, test := range []struct {
		name    string
		list    []disk.FilesystemErrors
		healthy bool
		detail  string // a part of it; empty: no check
	}{
		{"sound", nil, true, ""},
		{"broken", []disk.FilesystemErrors{broken}, false, "DATA (/dev/vda5): the file system has 1 error"},
		{"repaired", []disk.FilesystemErrors{repaired}, true, "had 1 error"},
	} {
		h := &api.HealthResponse{Healthy: true}
		health.Add(h, storageCheck(test.list))
		if h.Healthy != test.healthy || len(h.Checks) > 0 != (test.detail != "") {
			t.Errorf("%s: %v", test.name, h)
		} else if test.detail != "" && (h.Checks[0].Ok != test.healthy || !strings.Contains(h.Checks[0].Detail, test.detail)) {
			t.Errorf("%s: %v", test.name, h)
		}
	}
}
