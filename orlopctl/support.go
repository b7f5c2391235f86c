package main

import (
	"archive/tar"
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path"
	"path/filepath"
	"strings"
	"time"

	agecrypt "filippo.io/age"
	"filippo.io/age/agessh"
	"github.com/spf13/cobra"
	"google.golang.org/grpc"
	"google.golang.org/grpc/codes"
	"google.golang.org/grpc/status"
	"google.golang.org/protobuf/proto"

	"github.com/orlop-os/orlop/orlopctl/connect"
	"github.com/orlop-os/orlop/orlopctl/exit"
	"github.com/orlop-os/orlop/orlopctl/format"
	"github.com/orlop-os/orlop/orlopctl/iostreams"
	"github.com/orlop-os/orlop/orlopctl/secretfile"
	"github.com/orlop-os/orlop/pkg/api"
	"github.com/orlop-os/orlop/pkg/client"
)

const (
	// supportTimeout bounds the collection of a whole support bundle. partTimeout bounds the
	// collection of each part.
	supportTimeout = 10 * time.Minute
	partTimeout    = 30 * time.Second
	// maxPartLines and maxPartBytes bound a part that is a log. A longer log loses its oldest
	// lines; a normal machine has fewer lines.
	maxPartLines = 20000
	maxPartBytes = 8 << 20
	// maxSupportBytes bounds the whole support bundle, because a machine could send any amount of
	// data.
	maxSupportBytes = 256 << 20
)

func supportCommand(ios *iostreams.Streams, conn *connect.Connector) *cobra.Command {
	var to []string
	var out string
	var plain, force bool
	c := &cobra.Command{
		Use:   "support --out FILE --to RECIPIENT...",
		Short: "Collect the state of a machine in one encrypted file, for support",
		Long: "Collect the state of a machine in one file, for support: every topic of its state, the configuration without\n" +
			"its secrets, health, services, events, logs, the audit log, the last upgrade, images, and the issued\n" +
			"certificates. A reader's certificate is enough. The command leaves out parts that it cannot read. index.json\n" +
			"lists all parts, and the reason for each missing part.\n\n" +
			"The file is a tar archive, encrypted (age-encryption.org) before it is written to the disk. Each RECIPIENT can\n" +
			"decrypt it: age1…, an SSH public key (ssh-ed25519 … or ssh-rsa …), or a file with such keys, one per line.\n" +
			"`age -d -i KEY FILE | tar x` decrypts and unpacks it.\n\n" +
			"The machine returns no secrets to readers. Texts in the form of a secret (private keys, web tokens, passwords\n" +
			"in URLs) that a program has written to its log are replaced by (redacted). Other secrets in logs are not\n" +
			"recognized.",
		Example: "  orlopctl support --out m1.age --to age1qz0… --to ~/.ssh/id_ed25519.pub",
		Args:    cobra.NoArgs,
		RunE: func(*cobra.Command, []string) error {
			if plain == (len(to) > 0) {
				return exit.Usagef("support: cannot encrypt: expected --to RECIPIENT, or --plain for a file that is not encrypted")
			}
			readers, err := recipients(to)
			if err != nil {
				return err
			}
			if err := vacant(out, force); err != nil {
				return err
			}
			return conn.CallFor(supportTimeout, func(ctx context.Context, c *client.Client) error { return collectSupport(ctx, ios, c, out, readers) })
		},
	}
	f := c.Flags()
	f.StringVar(&out, "out", "", "file to write")
	f.StringArrayVar(&to, "to", nil, "recipient that can decrypt the file; repeatable")
	f.BoolVar(&plain, "plain", false, "do not encrypt the file")
	f.BoolVar(&force, "force", false, "replace an existing file")
	must(c.MarkFlagRequired("out"))
	return c
}

// collectSupport writes a support bundle to a file, encrypted if there are recipients. It prints
// the reasons for missing or incomplete parts.
func collectSupport(ctx context.Context, ios *iostreams.Streams, c *client.Client, out string, readers []agecrypt.Recipient) error {
	directory, _, _ := strings.Cut(filepath.Base(out), ".")
	b := &supportBundle{directory: directory, timeout: partTimeout, index: supportIndex{Tool: toolVersion(), Began: time.Now().UTC().Truncate(time.Second)}}
	err := secretfile.WriteAtomic(out, func(file io.Writer) error {
		encrypted, err := encrypt(file, readers)
		if err != nil {
			return err
		}
		b.tar = tar.NewWriter(encrypted)
		if err := b.collect(ctx, c); err != nil {
			return err
		}
		if err := errors.Join(b.tar.Close(), encrypted.Close()); err != nil {
			return fmt.Errorf("%s: cannot write: %w", out, err)
		}
		return nil
	})
	if err != nil {
		return err
	}
	if !ios.Human() {
		return ios.PrintPlain(b.index)
	}
	had := 0
	for _, p := range b.index.Parts {
		if p.Had {
			had++
		}
		if p.Problem != "" {
			ios.Errorln(fmt.Sprintf("%s: %s", p.Name, format.Clean(p.Problem)))
		}
	}
	ios.Printf("wrote %s: %d of %s, %s\n", out, had, format.Count(len(b.index.Parts), "part"), format.Size(int64(b.bytes)))
	return nil
}

// encrypt returns a writer that encrypts for the recipients. Without recipients, the writer does
// not encrypt. Close of the writer does not close the file.
func encrypt(file io.Writer, readers []agecrypt.Recipient) (io.WriteCloser, error) {
	if len(readers) == 0 {
		return forAll{file}, nil
	}
	encrypted, err := agecrypt.Encrypt(file, readers...)
	if err != nil {
		return nil, fmt.Errorf("cannot encrypt: %w", err)
	}
	return encrypted, nil
}

// forAll is a writer without encryption.
type forAll struct{ io.Writer }

func (forAll) Close() error { return nil }

// supportIndex is the content of index.json of a support bundle: the requested parts in the order
// of the requests, with the result of each.
type supportIndex struct {
	Machine string        `json:"machine,omitempty"` // its name
	Tool    string        `json:"tool"`              // version of the orlopctl that wrote it
	Began   time.Time     `json:"began"`
	Parts   []supportPart `json:"parts"`
}

type supportPart struct {
	Name     string `json:"name"` // its file in the bundle
	Had      bool   `json:"had"`  // whether the bundle contains the part, perhaps incomplete
	Bytes    int    `json:"bytes"`
	Older    int    `json:"older,omitempty"`    // number of older lines that were dropped
	Redacted int    `json:"redacted,omitempty"` // number of probable secrets that were replaced
	Problem  string `json:"problem,omitempty"`  // why the part is missing or incomplete
}

// supportBundle is a support bundle during its creation. It has only a single part in memory at a
// time.
type supportBundle struct {
	tar       *tar.Writer
	directory string        // top directory in the tar
	timeout   time.Duration // time limit for each part
	index     supportIndex
	bytes     int   // of all parts
	first     error // error of the first missing part
}

// collect reads all parts from a machine, in order, and records each failure in the index. It
// returns an error only if the file cannot be written, the user cancels, or no part could be read.
func (b *supportBundle) collect(ctx context.Context, c *client.Client) error {
	var version *api.VersionResponse
	var services *api.ListServicesResponse
	var topics *api.TopicValue
	parts := []struct {
		name string
		read reading
	}{
		{"version.json", answer(c.Machine.Version, &api.VersionRequest{}, &version)},
		{"health.json", presentHealth(c)},
		{"services.json", answer(c.Service.List, &api.ListServicesRequest{}, &services)},
		{"configuration.yaml", configuration(c)},
		{"history.json", answer(c.Config.History, &api.ConfigHistoryRequest{}, nil)},
		{"upgrade.json", answer(c.Upgrade.Status, &api.UpgradeStatusRequest{}, nil)},
		{"images.json", answer(c.Image.List, &api.ListImagesRequest{}, nil)},
		{"trust.json", answer(c.Trust.ListCertificates, &api.ListCertificatesRequest{}, nil)},
		{"audit.jsonl", lines(c.Audit.Read, &api.ReadAuditRequest{}, func(l *api.AuditLine) string { return string(l.Line) })},
		{"audit-refused.jsonl", lines(c.Audit.Read, &api.ReadAuditRequest{Refused: true}, func(l *api.AuditLine) string { return string(l.Line) })},
		{"events.txt", lines(c.Machine.Events, &api.EventsRequest{}, eventLine)},
		{"kernel.txt", lines(c.Log.Kernel, &api.KernelLogRequest{}, kernelLine)},
		{"kernel-before.txt", ifAny(lines(c.Log.Kernel, &api.KernelLogRequest{PreviousBoot: true}, kernelLine))},
		{"kernel-crash.txt", ifAny(lines(c.Log.Kernel, &api.KernelLogRequest{Crash: true}, kernelLine))},
		{"state/topics.json", answer(c.Machine.Get, &api.GetRequest{}, &topics)},
	}
	for _, p := range parts {
		if err := b.add(ctx, p.name, p.read); err != nil {
			return err
		}
	}
	for _, topic := range topics.GetTopics() {
		if err := b.add(ctx, "state/"+fileName(topic)+".json", answer(c.Machine.Get, &api.GetRequest{Topic: topic}, nil)); err != nil {
			return err
		}
	}
	for _, s := range services.GetServices() {
		if err := b.add(ctx, "logs/"+fileName(s.Name)+".txt", lines(c.Log.Service, &api.ServiceLogRequest{Service: s.Name}, logLine)); err != nil {
			return err
		}
	}
	if services == nil {
		b.index.Parts = append(b.index.Parts, supportPart{Name: "logs", Problem: "without the list of services, their names are unknown"})
	}
	had := false
	for _, p := range b.index.Parts {
		had = had || p.Had
	}
	if !had {
		return fmt.Errorf("support: no part could be read from the machine, and no file was written: %w", b.first)
	}
	b.index.Machine = version.GetMachine()
	index, err := json.MarshalIndent(b.index, "", "  ")
	if err != nil {
		return fmt.Errorf("support: cannot format the index: %w", err)
	}
	return b.write("index.json", append(index, '\n'))
}

// add reads a part and writes it. If the part breaks off, add writes its beginning. It returns an
// error only if the file cannot be written or the user cancels.
func (b *supportBundle) add(ctx context.Context, name string, read reading) error {
	patience, cancel := context.WithTimeout(ctx, b.timeout)
	defer cancel()
	got, err := read(patience)
	if errors.Is(ctx.Err(), context.Canceled) {
		return errors.New("support: stopped; no file was written")
	}
	if b.bytes+len(got.text) > maxSupportBytes {
		got, err = content{}, fmt.Errorf("the bundle would have more than %s with it", format.Size(maxSupportBytes))
	}
	p := supportPart{Name: name, Had: err == nil || len(got.text) > 0, Bytes: len(got.text), Older: got.older, Redacted: got.redacted}
	if err != nil {
		p.Problem, _ = redact(exit.Message(err))
		if b.first == nil {
			b.first = err
		}
	}
	b.index.Parts = append(b.index.Parts, p)
	b.bytes += p.Bytes
	if !p.Had {
		return nil
	}
	return b.write(name, got.text)
}

func (b *supportBundle) write(name string, text []byte) error {
	err := b.tar.WriteHeader(&tar.Header{Name: path.Join(b.directory, name), Mode: 0o600, Size: int64(len(text)), ModTime: b.index.Began})
	if err == nil {
		_, err = b.tar.Write(text)
	}
	if err != nil {
		return fmt.Errorf("support: cannot write %s: %w", name, err)
	}
	return nil
}

// fileName converts a name from a machine into a safe file name without a path.
func fileName(name string) string {
	return strings.Map(func(r rune) rune {
		switch {
		case r >= 'a' && r <= 'z', r >= 'A' && r <= 'Z', r >= '0' && r <= '9', r == '-', r == '_':
			return r
		}
		return '_'
	}, name)
}

// content is the content of a part, without probable secrets.
type content struct {
	text            []byte
	older, redacted int // as in supportPart
}

// reading reads a part. If it returns an error, it can also return the data that it read before the
// error.
type reading func(context.Context) (content, error)

// answer returns a reading of the answer of a method, as JSON. If keep is not nil, the reading also
// stores the answer in *keep.
func answer[Q any, A proto.Message](method func(context.Context, Q, ...grpc.CallOption) (A, error), request Q, keep *A) reading {
	return func(ctx context.Context) (content, error) {
		a, err := method(ctx, request)
		if err != nil {
			return content{}, err
		}
		if keep != nil {
			*keep = a
		}
		return jsonContent(a)
	}
}

func presentHealth(c *client.Client) reading {
	return func(ctx context.Context) (content, error) {
		stream, err := c.Cluster.Health(ctx, &api.HealthRequest{Once: true})
		if err != nil {
			return content{}, err
		}
		health, err := stream.Recv()
		if err != nil {
			return content{}, err
		}
		return jsonContent(health)
	}
}

func configuration(c *client.Client) reading {
	return func(ctx context.Context) (content, error) {
		a, err := c.Config.Get(ctx, &api.GetConfigRequest{})
		return textContent(string(a.GetDocuments())), err
	}
}

// lines returns a reading of the newest lines of a streaming method.
func lines[Q, A any](method func(context.Context, Q, ...grpc.CallOption) (grpc.ServerStreamingClient[A], error), request Q, line func(*A) string) reading {
	return func(ctx context.Context) (content, error) {
		var kept []string
		var bytes, older int
		stream, err := method(ctx, request)
		if err == nil {
			err = connect.Each(stream.Recv, func(a *A) error {
				kept = append(kept, line(a)+"\n")
				for bytes += len(kept[len(kept)-1]); len(kept) > maxPartLines || bytes > maxPartBytes; kept = kept[1:] {
					bytes, older = bytes-len(kept[0]), older+1
				}
				return nil
			})
		}
		got := textContent(strings.Join(kept, ""))
		got.older = older
		return got, err
	}
}

// ifAny makes a reading optional: if the machine answers NotFound, the part is empty and has no
// problem.
func ifAny(read reading) reading {
	return func(ctx context.Context) (content, error) {
		got, err := read(ctx)
		if status.Code(err) == codes.NotFound {
			err = nil
		}
		return got, err
	}
}

func textContent(text string) content {
	text, redacted := redact(text)
	return content{text: []byte(text), redacted: redacted}
}

// jsonContent returns an answer as JSON with its fields in alphabetical order.
func jsonContent(a proto.Message) (content, error) {
	text, err := iostreams.ToJSON(a)
	if err != nil {
		return content{}, err
	}
	decoder := json.NewDecoder(bytes.NewReader(text))
	decoder.UseNumber()
	var value any
	if err := decoder.Decode(&value); err != nil {
		return content{}, fmt.Errorf("answer: cannot read its JSON: %w", err)
	}
	value, redacted := redactValue(value)
	var out bytes.Buffer
	encoder := json.NewEncoder(&out)
	encoder.SetEscapeHTML(false)
	encoder.SetIndent("", "  ")
	if err := encoder.Encode(value); err != nil {
		return content{}, fmt.Errorf("answer: cannot format as JSON: %w", err)
	}
	return content{text: out.Bytes(), redacted: redacted}, nil
}

// maxRecipients is the maximum size in bytes of a file with recipients.
const maxRecipients = 1 << 20

// recipients parses the recipients of a support bundle. Each element is a public key, or a file
// with a key per line.
func recipients(to []string) ([]agecrypt.Recipient, error) {
	var all []agecrypt.Recipient
	for _, name := range to {
		if strings.HasPrefix(name, "age1") || strings.HasPrefix(name, "ssh-") {
			r, err := recipient(name)
			if err != nil {
				return nil, err
			}
			all = append(all, r)
			continue
		}
		if secretKey(name) {
			return nil, errSecretKey()
		}
		file, err := recipientsFile(name)
		if err != nil {
			return nil, err
		}
		all = append(all, file...)
	}
	return all, nil
}

func recipientsFile(name string) ([]agecrypt.Recipient, error) {
	f, err := os.Open(name)
	if err != nil {
		return nil, exit.Usagef("--to: cannot use: it is neither age1… nor ssh-…, nor a file: %w", err)
	}
	defer func() { _ = f.Close() }() // the file was only read
	text, err := io.ReadAll(io.LimitReader(f, maxRecipients))
	if err != nil {
		return nil, exit.Usagef("--to: cannot read: %w", err)
	}
	if secretKey(string(text)) {
		return nil, errSecretKey()
	}
	var all []agecrypt.Recipient
	for line := range strings.Lines(string(text)) {
		if line = strings.TrimSpace(line); line == "" || strings.HasPrefix(line, "#") {
			continue
		}
		r, err := recipient(line)
		if err != nil {
			return nil, fmt.Errorf("%s: %w", name, err)
		}
		all = append(all, r)
	}
	if len(all) == 0 {
		return nil, exit.Usagef("--to %s: cannot use: it contains no public key", name)
	}
	return all, nil
}

// secretKey reports whether a text contains a private key. A message must not contain the text
// then.
func secretKey(text string) bool {
	return keyEdge.MatchString(text) || strings.Contains(text, "AGE-SECRET-KEY-")
}

func errSecretKey() error {
	return &exit.Error{Code: exit.Usage, Err: errors.New("--to: cannot use: it is a secret key"), Hint: "use its public key (`age-keygen -y`, or the file that ends with .pub)"}
}

// recipient parses a public key. Its errors show no part of the text, because it might be a secret.
func recipient(key string) (r agecrypt.Recipient, err error) {
	switch {
	case strings.HasPrefix(key, "age1pq1"):
		r, err = agecrypt.ParseHybridRecipient(key)
	case strings.HasPrefix(key, "age1"):
		r, err = agecrypt.ParseX25519Recipient(key)
	default:
		r, err = agessh.ParseRecipient(key)
	}
	if err != nil {
		return nil, exit.Usagef("--to: cannot use a public key: expected age1…, ssh-ed25519 … or ssh-rsa …, whole")
	}
	return r, nil
}
