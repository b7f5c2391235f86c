package main

import (
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"testing"

	"github.com/orlop-os/orlop/pkg/config"
)

// TestImageDiskConfig checks that no file of the image which cannot be used permits a format
// without encryption.
func TestImageDiskConfig(t *testing.T) {
	const key = "age1ql3z7hjy54pw3hyww5ayyfg7zqgvc7w3j2elw8zmrj2kg5sfn9aqmcac8p"
	reference, err := os.ReadFile("../pkg/config/reference.yaml")
	if err != nil {
		t.Fatal(err)
	}
	tpm := string(reference)
	none := regexp.MustCompile(`(?s)        - tpm\n.*?`+key+`\n`).ReplaceAllString(tpm, "        - none\n")
	silent := regexp.MustCompile(`(?s)    encryption:\n      # How.*?`+key+`\n`).ReplaceAllString(tpm, "")
	for _, c := range []struct {
		name                 string
		document, recipients string // contents; "-": no file, "/": a directory
		want                 []string
		undecided            string // a part of the reason; empty: decided
	}{
		{"nothing", "-", "-", nil, ""},
		{"a profile with recipients", "-", "age1a\nage1b\n", []string{"age1a", "age1b"}, ""},
		{"a configuration with recipients", tpm, "-", []string{key}, ""},
		{"a configuration with recipients decides", tpm, "age1a\n", []string{key}, ""},
		{"an explicit none decides", none, "age1a\n", nil, ""},
		{"a configuration without a choice", silent, "age1a\n", []string{"age1a"}, ""},
		{"an empty file of recipients", "-", "\n", nil, "has no recipients"},
		{"unreadable recipients", "-", "/", nil, "is a directory"},
		{"an unreadable configuration", "/", "age1a\n", nil, "is a directory"},
		{"a wrong configuration", "kind: [", "age1a\n", nil, "cannot be read as YAML"},
		{"a configuration with an unknown field", strings.Replace(tpm, "\n  disk:", "\n  disc:", 1), "-", nil, "disc"},
	} {
		dir := t.TempDir()
		write := func(name, content string) string {
			path := filepath.Join(dir, name)
			var err error
			switch content {
			case "-":
			case "/":
				err = os.Mkdir(path, 0o700)
			default:
				err = os.WriteFile(path, []byte(content), 0o600)
			}
			if err != nil {
				t.Fatal(err)
			}
			return path
		}
		got := imageDiskConfig(write("configuration", c.document), write("recipients", c.recipients))
		if !slices.Equal(got.Recipients, c.want) || (got.Undecided != "") != (c.undecided != "") || !strings.Contains(got.Undecided, c.undecided) {
			t.Errorf("%s: %+v", c.name, got)
		}
	}
}

// TestApplyDiskConfig checks that an apply which sets up the disk encrypts it as the configuration
// demands.
func TestApplyDiskConfig(t *testing.T) {
	c := &config.Config{}
	c.Machine.Spec.Disk.Encryption = &config.DiskEncryption{Unlock: []config.Unlock{config.UnlockTPM}, Recovery: config.DiskRecovery{Recipients: []config.Recipient{"age1a"}}}
	if got := applyDiskConfig(c); !got.Wipe || !slices.Equal(got.Recipients, []string{"age1a"}) || got.Undecided != "" {
		t.Errorf("%+v", got)
	}
	c.Machine.Spec.Disk.Encryption = &config.DiskEncryption{Unlock: []config.Unlock{config.UnlockNone}}
	if got := applyDiskConfig(c); !got.Wipe || len(got.Recipients) > 0 || got.Undecided != "" {
		t.Errorf("%+v", got)
	}
}
