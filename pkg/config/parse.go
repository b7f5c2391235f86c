package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"reflect"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

// Limits of a configuration file.
const (
	// MaxSize is the maximum size of a file, in bytes.
	MaxSize = 1 << 20
	// MaxDepth is the maximum nesting of mappings and lists. No field needs more than 9 levels.
	MaxDepth = 32
)

// Parse parses the documents of a file, sets defaults and validates the result. It returns the
// configuration, or nil and all problems in the order of their lines. The file name is used only in
// messages.
func Parse(filename string, data []byte) (*Config, Problems) {
	if filename == "" {
		filename = "-"
	}
	cfg := &Config{origins: map[string]Origin{}}
	cfg.Machine.defaults()
	cfg.Network.defaults()
	r := newReport(filename, cfg.origins)
	d := &decoder{report: r, cfg: cfg}
	if d.checkText(data) {
		d.documents(data)
		d.reportForeign(data)
	}
	if d.complete {
		validate(cfg, r)
	}
	if len(r.problems) > 0 {
		return nil, r.problems.sorted()
	}
	return cfg, nil
}

// Origin is the source position of a field's value.
type Origin struct {
	File         string // empty if the value is the default
	Line, Column int    // from 1
}

// IsDefault reports whether the value is the default.
func (o Origin) IsDefault() bool { return o.File == "" }

// String returns file:line:column, or "default".
func (o Origin) String() string {
	if o.IsDefault() {
		return "default"
	}
	return fmt.Sprintf("%s:%d:%d", o.File, o.Line, o.Column)
}

// Origin returns the source position of the field with a path, as in Problem.Field.
func (c *Config) Origin(path string) Origin { return c.origins[path] }

// decoder decodes the documents of a file into a configuration.
type decoder struct {
	*report
	cfg *Config
	// knownKind reports whether at least one document has a known kind.
	knownKind bool
	// complete reports whether the whole file is valid YAML. Parse validates only a complete file.
	// After a syntax error, the decoder may not have found all documents of the file, and the
	// validation would report them as missing.
	complete bool
}

// checkText reports whether the file has a permitted size, is valid UTF-8 and contains no control
// characters. If not, it adds a problem. It does not leave these checks to the YAML library,
// because YAML libraries differ in them.
func (d *decoder) checkText(data []byte) bool {
	if len(data) > MaxSize {
		d.add(0, 0, "", wrong{reason: fmt.Sprintf("%d bytes long", len(data)), expected: "at most 1 MiB"})
		return false
	}
	line, column := 1, 1
	for i := 0; i < len(data); {
		r, size := utf8.DecodeRune(data[i:])
		switch {
		case r == utf8.RuneError && size == 1:
			d.add(line, column, "", wrong{reason: fmt.Sprintf("the byte 0x%02x is not text", data[i]), expected: "YAML in UTF-8"})
			return false
		case r < ' ' && r != '\n' && r != '\r' && r != '\t', r >= 0x7f && r < 0xa0 && r != 0x85, r == 0xfffe, r == 0xffff:
			d.add(line, column, "", wrong{reason: fmt.Sprintf("the control character %U", r), expected: "YAML in UTF-8"})
			return false
		}
		i, column = i+size, column+1
		if r == '\n' {
			line, column = line+1, 1
		}
	}
	return true
}

// documents decodes all documents of the file.
func (d *decoder) documents(data []byte) {
	decoder := yaml.NewDecoder(bytes.NewReader(data))
	for {
		n, err := nextDocument(decoder)
		if errors.Is(err, io.EOF) {
			d.complete = true
			return
		}
		if err != nil {
			line, reason := syntaxError(err)
			d.add(line, 0, "", wrong{reason: "cannot be read as YAML: " + reason})
			return
		}
		root := n.Content[0]
		if root.Kind == yaml.ScalarNode && root.Tag == "!!null" {
			continue // the document is empty or contains only comments
		}
		if d.checkSubset(root, 1) {
			d.document(root)
		}
	}
}

// reportForeign replaces all problems of a file for another system by a single problem that names
// the type of the file.
func (d *decoder) reportForeign(data []byte) {
	if d.knownKind {
		return
	}
	if is := lookalike(data); is != "" {
		d.problems, d.complete = nil, false
		d.add(1, 0, "kind", wrong{reason: "the file looks like " + is, expected: "documents of Orlop OS: " + oneOf(d.cfg.kindNames()), hint: lookalikeHint(is)})
	}
}

// nextDocument parses the next document. It converts a panic of the YAML library to an error,
// because PID 1 must survive any input.
func nextDocument(decoder *yaml.Decoder) (n *yaml.Node, err error) {
	defer func() {
		if r := recover(); r != nil {
			n, err = nil, fmt.Errorf("yaml: %v", r)
		}
	}()
	n = new(yaml.Node)
	if err := decoder.Decode(n); err != nil {
		return nil, err
	}
	if n.Kind != yaml.DocumentNode || len(n.Content) != 1 {
		return nil, errors.New("yaml: a document without content")
	}
	return n, nil
}

// syntaxError extracts the line from the YAML library's message ("yaml: line 3: …").
func syntaxError(err error) (line int, reason string) {
	reason = strings.TrimPrefix(oneLine(err), "yaml: ")
	// Omit the name of the anchor, because it can be an unquoted secret that begins with *.
	if before, _, ok := strings.Cut(reason, "unknown anchor '"); ok {
		reason = before + "an alias (*) to an unknown anchor; quote a value that begins with this character"
	}
	if rest, ok := strings.CutPrefix(reason, "line "); ok {
		if number, text, ok := strings.Cut(rest, ": "); ok {
			if n, err := strconv.Atoi(number); err == nil {
				return n + parserLag(text), text
			}
		}
	}
	return 0, reason
}

// parserLag returns the number to add to the line in a message of the YAML library: 1 for messages
// of its parser, which counts lines from 0, and 0 for messages of its scanner, which counts from 1.
func parserLag(message string) int {
	switch message {
	case "did not find expected ',' or ']'", "did not find expected ',' or '}'", "did not find expected '-' indicator",
		"did not find expected <document start>", "did not find expected key", "did not find expected node content",
		"found duplicate %TAG directive", "found duplicate %YAML directive", "found incompatible YAML document",
		"found undefined tag handle":
		return 1
	}
	return 0
}

// checkSubset adds a problem for each YAML construct that Parse does not accept. It returns false
// if the document is nested too deeply for further processing.
func (d *decoder) checkSubset(n *yaml.Node, depth int) bool {
	switch {
	case depth > MaxDepth:
		d.at(n, "kind", wrong{reason: fmt.Sprintf("nested more than %d levels deep", MaxDepth)})
		return false
	// The messages omit the names of aliases and anchors, because an unquoted secret can look like
	// an alias or an anchor.
	case n.Kind == yaml.AliasNode:
		d.at(n, "", wrong{reason: "an alias (*)", expected: "the value itself", hint: "anchors and aliases are not accepted; quote a value that begins with this character"})
	case n.Anchor != "":
		d.at(n, "", wrong{reason: "an anchor (&)", expected: "the value only", hint: "anchors and aliases are not accepted; quote a value that begins with this character"})
	case n.Style&yaml.TaggedStyle != 0:
		d.at(n, "", wrong{reason: "a tag (!)", expected: "the value only", hint: "tags are not accepted; quote a value that begins with this character"})
	}
	deep := true
	for _, child := range n.Content {
		deep = d.checkSubset(child, depth+1) && deep
	}
	return deep
}

// kinds returns the kinds of documents, in the order in which the documents of a configuration are
// printed.
func (c *Config) kinds() []kind {
	return []kind{
		{name: "Machine", target: func() any { return &c.Machine }, exists: func() bool { return true }},
		{name: "Cluster", target: func() any {
			if c.Cluster == nil {
				c.Cluster = new(Cluster)
			}
			return c.Cluster
		}, exists: func() bool { return c.Cluster != nil }},
		{name: "Network", target: func() any { return &c.Network }, exists: func() bool { return true }},
		{name: kindVolume, target: func() any {
			c.Volumes = append(c.Volumes, Volume{})
			return &c.Volumes[len(c.Volumes)-1]
		}},
		{name: kindAddon, target: func() any {
			c.Addons = append(c.Addons, Addon{})
			return &c.Addons[len(c.Addons)-1]
		}},
	}
}

// The kinds of which a configuration can contain several documents, identified by name.
const (
	kindVolume = "Volume"
	kindAddon  = "Addon"
)

// isNamed reports whether a configuration can contain several documents of a kind.
func isNamed(kind string) bool { return kind == kindVolume || kind == kindAddon }

// documentPath returns the path, as in Problem.Field, of a document of a named kind (isNamed).
func documentPath(kind, name string) string { return kind + `["` + shorten(name) + `"]` }

// kind is a kind of document.
type kind struct {
	name string
	// target returns a pointer to the struct of the document. For a named kind, each call adds a
	// new struct to the configuration. For any other kind, all calls return the same struct, and
	// the first call creates it if it is missing.
	target func() any
	// exists reports whether the configuration has the document. It is nil for a named kind.
	exists func() bool
}

// document is a document of the configuration.
type document struct {
	kind, path string        // path as in Problem.Field
	value      reflect.Value // of the struct
}

// documents returns the documents of the configuration in the order in which they are printed.
func (c *Config) documents() []document {
	if c == nil {
		return nil
	}
	var all []document
	for _, k := range c.kinds() {
		if k.exists != nil && k.exists() {
			all = append(all, document{k.name, k.name, reflect.ValueOf(k.target()).Elem()})
		}
	}
	for i := range c.Volumes {
		all = append(all, document{kindVolume, VolumePath(c.Volumes[i].Metadata.Name), reflect.ValueOf(&c.Volumes[i]).Elem()})
	}
	for i := range c.Addons {
		all = append(all, document{kindAddon, addonPath(c.Addons[i].Metadata.Name), reflect.ValueOf(&c.Addons[i]).Elem()})
	}
	return all
}

func (c *Config) kindNames() []string {
	var names []string
	for _, k := range c.kinds() {
		names = append(names, k.name)
	}
	return names
}

// document decodes a document into the configuration.
func (d *decoder) document(root *yaml.Node) {
	const envelope = "a mapping with the fields apiVersion, kind, metadata and spec"
	if root.Kind != yaml.MappingNode {
		d.at(root, "kind", wrong{reason: "the document is " + describe(root), expected: envelope})
		return
	}
	kindNode, versionNode := lookup(root, "kind"), lookup(root, "apiVersion")
	if kindNode == nil {
		w := wrong{reason: "the document has no kind", expected: oneOf(d.cfg.kindNames())}
		if near := nearest("kind", keys(root)); near != "" {
			w.hint = fmt.Sprintf("the field %q is similar", near)
		}
		d.at(root, "kind", w)
		return
	}
	var k kind
	for _, known := range d.cfg.kinds() {
		if kindNode.Kind == yaml.ScalarNode && kindNode.Value == known.name {
			k = known
		}
	}
	if k.name == "" {
		w := wrong{reason: "the kind is " + describe(kindNode), expected: oneOf(d.cfg.kindNames())}
		if kindNode.Kind == yaml.ScalarNode {
			w.reason, w.nearest = fmt.Sprintf("the kind %s is not known", quote(kindNode.Value)), nearest(kindNode.Value, d.cfg.kindNames())
		}
		d.at(kindNode, "kind", w)
		return
	}
	d.knownKind = true
	path, expected := k.name, "one"
	if isNamed(k.name) {
		path, expected = documentPath(k.name, documentName(root)), "one of each name"
	}
	if first := d.origins[path]; !first.IsDefault() {
		d.add(kindNode.Line, kindNode.Column, path, wrong{reason: fmt.Sprintf("a second %s document; the first begins in line %d", k.name, first.Line), expected: expected})
		return
	}
	d.version(root, versionNode, path)
	target := reflect.ValueOf(k.target()).Elem()
	setDefaults(target)
	d.structure(root, path, target, "apiVersion", "kind")
}

// documentName returns metadata.name; "" if the field is missing or is not a text.
func documentName(root *yaml.Node) string {
	if metadata := lookup(root, "metadata"); metadata != nil && metadata.Kind == yaml.MappingNode {
		if name := lookup(metadata, "name"); name != nil && name.Kind == yaml.ScalarNode {
			return name.Value
		}
	}
	return ""
}

// version adds a problem if n, the value of apiVersion in a document, is not APIVersion. n is nil
// if the document has no apiVersion.
func (d *decoder) version(root, n *yaml.Node, document string) {
	path := document + ".apiVersion"
	switch {
	case n == nil:
		d.at(root, path, wrong{reason: "missing", expected: APIVersion})
	case n.Kind != yaml.ScalarNode:
		d.at(n, path, wrong{reason: "is " + describe(n), expected: APIVersion})
	case n.Value != APIVersion:
		d.at(n, path, wrong{reason: fmt.Sprintf("%s is not known to this version", quote(n.Value)), expected: APIVersion})
	}
}

// lookup returns the value of a key in a mapping, or nil.
func lookup(n *yaml.Node, key string) *yaml.Node {
	for i := 0; i+1 < len(n.Content); i += 2 {
		if n.Content[i].Kind == yaml.ScalarNode && n.Content[i].Value == key {
			return n.Content[i+1]
		}
	}
	return nil
}

// keys returns the keys of a mapping.
func keys(n *yaml.Node) []string {
	var all []string
	for i := 0; i < len(n.Content); i += 2 {
		all = append(all, n.Content[i].Value)
	}
	return all
}
