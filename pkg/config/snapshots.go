package config

import (
	"fmt"
	"slices"
	"strings"
	"time"

	"filippo.io/age"
)

// Snapshots configures the interval, the retention and the encryption of stored snapshots.
type Snapshots struct {
	Every      Duration        `yaml:"every" limits:"10m to 168h, or 0s for none"`
	Keep       int             `yaml:"keep" limits:"1 to 32"`
	Recipients []Recipient     `yaml:"recipients,omitempty"`
	Target     *SnapshotTarget `yaml:"target,omitempty"`
}

// SnapshotTarget is a bucket of an S3-compatible store. Each snapshot is uploaded once, as
// PREFIX/CLUSTER/MACHINE/NAME. The machine never reads or deletes objects, so the store should not
// give its access key these rights. How long the store retains snapshots is a setting of the
// bucket.
type SnapshotTarget struct {
	Endpoint  StoreEndpoint `yaml:"endpoint" jsonschema:"required"`
	Bucket    string        `yaml:"bucket" jsonschema:"required"`
	Prefix    string        `yaml:"prefix,omitempty"`
	Region    string        `yaml:"region"`
	AccessKey Secret        `yaml:"accessKey" jsonschema:"required"`
	SecretKey Secret        `yaml:"secretKey" jsonschema:"required"`
	CA        Bundle        `yaml:"ca,omitempty"`
}

func defaultSnapshots() Snapshots { return Snapshots{Every: Duration(6 * time.Hour), Keep: 4} }

// Stores without regions expect the region us-east-1.
func (t *SnapshotTarget) defaults() { t.Region = "us-east-1" }

// URL returns the destination of snapshots without the credentials: https://host:port/bucket, or
// https://host:port/bucket/prefix.
func (t *SnapshotTarget) URL() string {
	place := t.Endpoint.String() + "/" + t.Bucket
	if t.Prefix != "" {
		place += "/" + t.Prefix
	}
	return place
}

// Recipient is a public key of age: age1…, or age1pq1…, which is secure against quantum computers,
// too.
type Recipient string

const wantRecipient = "a public key of age, age1…, as `age-keygen` prints it"

// UnmarshalText parses a public key. Its errors do not contain the text, because the text can be
// the private key by mistake.
func (r *Recipient) UnmarshalText(text []byte) error {
	s := string(text)
	if strings.Contains(strings.ToUpper(s), "AGE-SECRET-KEY-") {
		return &wrong{reason: "a secret key", expected: wantRecipient, hint: "`age-keygen -y` prints the public key that belongs to it; generate a new key pair if others have seen this file"}
	}
	if _, err := age.ParseRecipients(strings.NewReader(s)); err != nil || len(strings.Fields(s)) != 1 {
		return &wrong{reason: "not a public key of age", expected: wantRecipient}
	}
	*r = Recipient(s)
	return nil
}

// MarshalText returns the text.
func (r Recipient) MarshalText() ([]byte, error) { return []byte(r), nil }

// StoreEndpoint is the URL of an object store.
type StoreEndpoint struct{ Endpoint }

const wantStore = "https://host or https://host:port, such as https://s3.example.com"

// UnmarshalText parses the URL.
func (e *StoreEndpoint) UnmarshalText(text []byte) error {
	return e.read(string(text), wantStore, 443, false)
}

// maxRecipients is the maximum number of recipients. It is limited because each recipient increases
// the size of a snapshot's header.
const maxRecipients = 8

// longestPrefix is the maximum length of a prefix. An object key has at most 1024 bytes, and also
// contains the names of the cluster, the machine and the snapshot.
const longestPrefix = 512

// recipients validates the public keys to which an object is encrypted.
func (v checks) recipients(path, object string, list []Recipient) {
	if len(list) > maxRecipients {
		v.on(path, wrong{reason: fmt.Sprintf("%d recipients", len(list)), expected: fmt.Sprintf("at most %d", maxRecipients)})
	}
	quantum := func(r Recipient) bool { return strings.HasPrefix(string(r), "age1pq1") }
	for i, r := range list {
		at := fmt.Sprintf("%s[%d]", path, i)
		if slices.Contains(list[:i], r) && r != "" {
			v.on(at, wrong{reason: "is given twice", expected: "each once"})
		}
		if quantum(r) != quantum(list[0]) && r != "" && list[0] != "" {
			v.on(at, wrong{reason: "has another type than the first key", expected: "all or none of age1pq1…: the weakest key determines the security of " + object})
		}
	}
}

func (v clusterValidator) snapshots(path string, s *Snapshots) {
	v.recipients(path+".recipients", "a snapshot", s.Recipients)
	if s.Target != nil {
		v.snapshotTarget(path+".target", s.Target)
		if len(s.Recipients) == 0 && !v.broken[path+".recipients"] {
			v.on(path+".target", wrong{reason: "snapshots would be uploaded without encryption", expected: "recipients"})
		}
	}
}

func (v clusterValidator) snapshotTarget(path string, t *SnapshotTarget) {
	if b := t.Bucket; b != "" && (len(b) < 3 || hostname(b) != nil || len(b) > 63) {
		v.on(path+".bucket", wrong{reason: quote(b) + " is not the name of a bucket", expected: `3 to 63 lower-case letters, digits, "-" and "."`})
	}
	if t.Prefix != "" && !isPrefix(t.Prefix) {
		v.on(path+".prefix", wrong{
			reason: quote(t.Prefix) + " is not a prefix", expected: fmt.Sprintf(`names of letters, digits, ".", "_" and "-", with "/" between them, at most %d characters`, longestPrefix),
			nearest: nearestPrefix(t.Prefix),
		})
	}
	if err := dnsLabel(t.Region); err != nil && !v.broken[path+".region"] {
		v.on(path+".region", wrong{reason: fmt.Sprintf("%s %v", quote(t.Region), err), expected: "the name of a region, such as us-east-1"})
	}
	for _, key := range []struct {
		name string
		text Secret
	}{{"accessKey", t.AccessKey}, {"secretKey", t.SecretKey}} {
		if v.broken[path+"."+key.name] {
			continue
		}
		// These characters are invalid in the header of requests. There, "/" separates the access
		// key from the next field.
		if strings.ContainsFunc(key.text.Reveal(), func(r rune) bool { return r <= ' ' || r > '~' || r == '/' && key.name == "accessKey" }) {
			v.on(path+"."+key.name, wrong{reason: "contains characters that no store uses", expected: "the key as the store shows it"})
		}
	}
	v.bundle(path+".ca", t.CA)
}

// isPrefix reports whether a text is at most longestPrefix long and consists of names that need no
// escaping in a URL, separated by "/".
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

// nearestPrefix returns the prefix without slashes at its ends if this text is valid; otherwise "".
func nearestPrefix(s string) string {
	if s = strings.Trim(s, "/"); isPrefix(s) {
		return s
	}
	return ""
}
