package main

import (
	"context"
	"errors"
	"os"
	"path/filepath"
	"regexp"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/orlop-os/orlop/machined/disk"
	"github.com/orlop-os/orlop/machined/uevent"
	"github.com/orlop-os/orlop/pkg/config"
	"github.com/orlop-os/orlop/pkg/diskkey"
	"github.com/orlop-os/orlop/pkg/secureboot"
)

// phase is an encryption with files in a directory, and a process that counts its orders.
type phase struct {
	encryption
	orders  int
	failure error // of the process
}

// newPhase makes a phase with these files: "TPM", "signer" and "signatures".
func newPhase(t *testing.T, files ...string) *phase {
	t.Helper()
	dir, p := t.TempDir(), &phase{}
	start := func(context.Context, []byte, []*os.File, int) ([]byte, error) {
		p.orders++
		return []byte("{}"), p.failure
	}
	sealer := &diskkey.Asker{
		Device: filepath.Join(dir, "TPM"), Signer: filepath.Join(dir, "signer"), Signatures: filepath.Join(dir, "signatures"), Log: filepath.Join(dir, "log"), Start: start,
	}
	p.encryption = encryption{sealer: sealer, ended: new(atomic.Bool), closed: new(atomic.Bool)}
	for _, name := range files {
		p.add(t, name)
	}
	return p
}

func (p *phase) add(t *testing.T, name string) {
	t.Helper()
	if err := os.WriteFile(filepath.Join(filepath.Dir(p.sealer.Device), name), nil, 0o600); err != nil {
		t.Fatal(err)
	}
}

// TestEndPhase checks that the phase ends once, and only if the image has a key for PCR 11. A TPM
// that does not confirm the end is an error.
func TestEndPhase(t *testing.T) {
	broken := errors.New("the TPM does not answer")
	for _, c := range []struct {
		name    string
		files   []string
		failure error
		orders  int // after two calls
	}{
		{"signed image", []string{"TPM", "signer", "signatures"}, nil, 1},
		{"no TPM", []string{"signer", "signatures"}, nil, 0},
		{"an image without a key", []string{"TPM", "signatures"}, broken, 0},
		{"a boot loader that passes on no signatures", []string{"TPM", "signer"}, nil, 1},
		{"a broken TPM", []string{"TPM", "signer", "signatures"}, broken, 6},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPhase(t, c.files...)
			p.failure = c.failure
			for range 2 {
				if err := p.endPhase(t.Context()); !errors.Is(err, c.failure) && c.orders > 0 || err != nil && c.orders == 0 {
					t.Errorf("%s: %v", c.name, err)
				}
			}
			if p.orders != c.orders || !p.ended.Load() {
				t.Errorf("%s: %d orders", c.name, p.orders)
			}
		})
	}
}

// TestDeviceAdded checks that a TPM which the kernel finds after the end of the phase is closed,
// also if its event was lost, and that a failure is reported.
func TestDeviceAdded(t *testing.T) {
	tpm, other := &uevent.Event{Subsystem: "tpmrm"}, &uevent.Event{Subsystem: "block"}
	broken := errors.New("the TPM does not answer")
	for _, c := range []struct {
		name    string
		before  bool // the device is there before the end of the phase
		early   bool // the event comes before the end of the phase
		event   *uevent.Event
		failure error
		orders  int // after the end of the phase
	}{
		{"a TPM", false, false, tpm, nil, 1},
		{"another device", false, false, other, nil, 0},
		{"lost events", false, false, nil, nil, 1},
		{"lost events with a closed TPM", true, false, nil, nil, 0},
		{"another TPM", true, false, tpm, nil, 1},
		{"a broken TPM", false, false, tpm, broken, 3},
		{"a TPM in the phase", true, true, tpm, nil, 0},
		{"lost events in the phase", true, true, nil, nil, 0},
	} {
		synctest.Test(t, func(t *testing.T) {
			p := newPhase(t, "signer", "signatures")
			if c.before {
				p.add(t, "TPM")
			}
			if !c.early {
				if err := p.endPhase(t.Context()); err != nil {
					t.Fatal(err)
				}
			}
			if !c.before {
				p.add(t, "TPM")
			}
			p.orders, p.failure = 0, c.failure
			var failed error
			p.deviceAdded(t.Context(), c.event, func(err error) { failed = err })
			time.Sleep(time.Minute) // more than all attempts
			if p.orders != c.orders || !errors.Is(failed, c.failure) {
				t.Errorf("%s: %d orders, %v", c.name, p.orders, failed)
			}
		})
	}
}

// TestCheckUnlock checks that a machine without encryption reads nothing before an upgrade, that a
// partition with a damaged header is reported, and that each key is checked.
func TestCheckUnlock(t *testing.T) {
	both := disk.Protection{State: true, Data: true}
	damaged := both
	damaged.Faults = []string{"DATA: no copy is valid"}
	unread := errors.New("input/output error")
	for _, c := range []struct {
		name       string
		protection disk.Protection
		failure    string // the step that fails
		want       string // a part of the error; empty: none
		asked      int    // number of predictions
	}{
		{"plain", disk.Protection{Plain: true}, "read", "", 0},
		{"encrypted", both, "", "", 2},
		{"one of them is encrypted", disk.Protection{Data: true, Plain: true}, "", "", 2},
		{"damaged", damaged, "", "DATA: no copy is valid", 0},
		{"a disk that cannot be read", both, "read", "input/output error", 0},
		{"unknown variables", both, "firmware", "input/output error", 0},
		{"no boot image", both, "next", "input/output error", 0},
		{"no running boot image", both, "running", "input/output error", 0},
		{"a key that the TPM would keep", both, "predict", "input/output error", 1},
	} {
		fail := func(step string) error {
			if c.failure == step {
				return unread
			}
			return nil
		}
		open := func(step string) func() (*os.File, error) {
			return func() (*os.File, error) {
				f, err := os.Open(os.DevNull)
				return f, errors.Join(err, fail(step))
			}
		}
		asked := 0
		err := unlockCheck{
			protection: c.protection,
			sealed:     func(context.Context) ([]diskkey.Sealed, error) { return make([]diskkey.Sealed, 2), fail("read") },
			firmware: func() (secureboot.Firmware, error) {
				return secureboot.Firmware{Enabled: true, DB: []byte("db"), DBX: []byte("dbx")}, fail("firmware")
			},
			running: open("running"),
			predict: func(_ context.Context, _ diskkey.Sealed, images diskkey.BootImages, enabled bool, db, dbx []byte) error {
				asked++
				if images.Next == nil || images.Running == nil || !enabled || string(db) != "db" || string(dbx) != "dbx" {
					t.Errorf("%s: the prediction gets other values", c.name)
				}
				return fail("predict")
			},
		}.do(t.Context(), open("next"))
		if (err != nil) != (c.want != "") || err != nil && !strings.Contains(err.Error(), c.want) || asked != c.asked {
			t.Errorf("%s: %v, and %d predictions", c.name, err, asked)
		}
	}
}

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
