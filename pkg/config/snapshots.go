package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
)

// Snapshots says how often a snapshot of the data is taken, how many are kept, and who can read
// them.
type Snapshots struct {
	// Every is the time from one to the next, 10m to 168h; with 0s none is taken, and those that
	// are there stay.
	Every Duration `yaml:"every"`
	// Keep is the number of them that are kept, 1 to 32. Each takes as much of DATA as the data.
	Keep int `yaml:"keep" jsonschema:"minimum=1,maximum=32"`
	// Recipients are who can read them, as public keys of age (age-encryption.org), at most 8;
	// without any they are not encrypted. The keys that belong to these are on no machine.
	// Snapshots that are there already stay as they are.
	Recipients []Recipient `yaml:"recipients,omitempty"`
	// Target is where those that are encrypted are sent, beside the machine's own disk. It needs
	// recipients.
	Target *SnapshotTarget `yaml:"target,omitempty"`
}

// SnapshotTarget is a bucket of a store that speaks the protocol of Amazon S3. Each snapshot is put
// there once as PREFIX/CLUSTER/MACHINE/NAME. Nothing there is read or deleted by the machine, and
// no user of the machine should be able to: how long snapshots stay is the bucket's to say.
type SnapshotTarget struct {
	// Endpoint is the URL of the store: https://host or https://host:port. The bucket is part of
	// the path, not of the host's name.
	Endpoint StoreEndpoint `yaml:"endpoint" jsonschema:"required"`
	// Bucket is the name of the bucket: 3 to 63 lower-case letters, digits, "-" and ".".
	Bucket string `yaml:"bucket" jsonschema:"required"`
	// Prefix stands before the names of the objects; without it they begin with the cluster's name.
	Prefix string `yaml:"prefix,omitempty"`
	// Region is the region that requests are signed for. Stores without regions take the default.
	Region string `yaml:"region"`
	// AccessKey names the user to the store. The user should be allowed to put objects there
	// (s3:PutObject), and nothing else.
	AccessKey Secret `yaml:"accessKey" jsonschema:"required"`
	// SecretKey is the user's key, by which requests are signed.
	SecretKey Secret `yaml:"secretKey" jsonschema:"required"`
	// CA signs the store's certificate, in PEM; the public authorities do as well.
	CA Bundle `yaml:"ca,omitempty"`
}

func defaultSnapshots() Snapshots { return Snapshots{Every: Duration(6 * time.Hour), Keep: 4} }

// what stores without regions call theirs
func (t *SnapshotTarget) defaults() { t.Region = "us-east-1" }

// URL is where snapshots are put, without what only the machine may know:
// https://host:port/bucket, and the prefix.
func (t *SnapshotTarget) URL() string {
	place := t.Endpoint.String() + "/" + t.Bucket
	if t.Prefix != "" {
		place += "/" + t.Prefix
	}
	return place
}

// Recipient is a public key of age: age1…, or age1pq1…, which a quantum computer does not break
// either.
type Recipient string

const wantRecipient = "a public key of age, age1…, as `age-keygen` prints it"

// UnmarshalText reads it. Its errors show none of it: it may be the other key.
func (r *Recipient) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.Contains(strings.ToUpper(s), "AGE-SECRET-KEY-") {
		return &wrong{reason: "a secret key", expected: wantRecipient, hint: "`age-keygen -y` prints the public key that belongs to it; make another pair if this file was seen by others"}
	}
	if _, err := age.ParseRecipients(strings.NewReader(s)); err != nil || len(strings.Fields(s)) != 1 {
		return &wrong{reason: "not a public key of age", expected: wantRecipient}
	}
	*r = Recipient(s)
	return nil
}

// MarshalText is the text.
func (r Recipient) MarshalText() ([]byte, error) { return []byte(r), nil }

// StoreEndpoint is the URL of a store of objects.
type StoreEndpoint struct{ Endpoint }

const wantStore = "https://host or https://host:port, such as https://s3.example.com"

// UnmarshalText reads the URL.
func (e *StoreEndpoint) UnmarshalText(text []byte) error {
	return e.read(string(text), wantStore, 443, false)
}

// mostRecipients bounds who can read a snapshot: each adds to its head.
const mostRecipients = 8

// longestPrefix is so long that the longest names of a cluster, a machine and a snapshot fit behind
// it: a key has 1024 bytes at most.
const longestPrefix = 512

func (p *parser) snapshots(path string, s *Snapshots) {
	if d := time.Duration(s.Every); d != 0 && (d < 10*time.Minute || d > 7*24*time.Hour) {
		p.on(path+".every", wrong{reason: s.Every.String() + " is out of range", expected: "10m to 168h, or 0s for none"})
	}
	if s.Keep < 1 || s.Keep > 32 {
		p.on(path+".keep", wrong{reason: fmt.Sprintf("%d is out of range", s.Keep), expected: "1 to 32"})
	}
	if len(s.Recipients) > mostRecipients {
		p.on(path+".recipients", wrong{reason: fmt.Sprintf("%d recipients", len(s.Recipients)), expected: fmt.Sprintf("at most %d", mostRecipients)})
	}
	quantum := func(r Recipient) bool { return strings.HasPrefix(string(r), "age1pq1") }
	for i, r := range s.Recipients {
		at := fmt.Sprintf("%s.recipients[%d]", path, i)
		if slices.Contains(s.Recipients[:i], r) && r != "" {
			p.on(at, wrong{reason: "is given twice", expected: "each once"})
		}
		if quantum(r) != quantum(s.Recipients[0]) && r != "" && s.Recipients[0] != "" {
			p.on(at, wrong{reason: "is of another kind than the first", expected: "all of age1pq1…, or none: a snapshot is as safe as the weakest of them"})
		}
	}
	if s.Target != nil {
		p.snapshotTarget(path+".target", s.Target)
		if len(s.Recipients) == 0 && !p.broken[path+".recipients"] {
			p.on(path+".target", wrong{reason: "snapshots would be sent that are not encrypted", expected: "recipients beside it"})
		}
	}
}

func (p *parser) snapshotTarget(path string, t *SnapshotTarget) {
	if b := t.Bucket; b != "" && (len(b) < 3 || hostname(b) != nil || len(b) > 63) {
		p.on(path+".bucket", wrong{reason: quote(b) + " is not the name of a bucket", expected: `3 to 63 lower-case letters, digits, "-" and "."`})
	}
	if t.Prefix != "" && !isPrefix(t.Prefix) {
		p.on(path+".prefix", wrong{
			reason: quote(t.Prefix) + " is not a prefix", expected: fmt.Sprintf(`names of letters, digits, ".", "_" and "-", with "/" between them, at most %d characters`, longestPrefix),
			nearest: nearestPrefix(t.Prefix),
		})
	}
	if err := dnsLabel(t.Region); err != nil && !p.broken[path+".region"] {
		p.on(path+".region", wrong{reason: fmt.Sprintf("%s %v", quote(t.Region), err), expected: "the name of a region, such as us-east-1"})
	}
	for _, key := range []struct {
		name string
		text Secret
	}{{"accessKey", t.AccessKey}, {"secretKey", t.SecretKey}} {
		if p.broken[path+"."+key.name] {
			continue
		}
		// The access key stands in a header of the request.
		if strings.ContainsFunc(key.text.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' || r == '/' && key.name == "accessKey" }) {
			p.on(path+"."+key.name, wrong{reason: "has characters that no store gives out", expected: "it as the store shows it"})
		}
	}
	p.bundle(path+".ca", t.CA)
}

// isPrefix says whether objects can have such names without anything in them being escaped.
func isPrefix(s string) bool {
	for part := range strings.SplitSeq(s, "/") {
		if strings.Trim(part, ".") == "" || strings.ContainsFunc(part, func(r rune) bool {
			return !(r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || strings.ContainsRune("._-", r))
		}) {
			return false
		}
	}
	return len(s) <= longestPrefix
}

// nearestPrefix is the prefix without slashes at its ends, if that is what is wrong.
func nearestPrefix(s string) string {
	if s = strings.Trim(s, "/"); isPrefix(s) {
		return s
	}
	return ""
}
