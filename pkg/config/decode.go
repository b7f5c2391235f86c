package config

import (
	"encoding"
	"errors"
	"fmt"
	"net/netip"
	"reflect"
	"slices"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// value decodes a node into v. It reports every problem with its position. If a node has a problem,
// the part of v for this node is unchanged.
func (d *decoder) value(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind == yaml.AliasNode || n.Style&yaml.TaggedStyle != 0 {
		d.broken[path] = true // checkSubset has reported the problem
		return
	}
	d.origins[path] = Origin{File: d.file, Line: n.Line, Column: n.Column}
	if n.Kind == yaml.ScalarNode && n.Tag == "!!null" {
		d.at(n, path, wrong{reason: "has no value", expected: expectation(v.Type()), hint: "omit it if it is not needed"})
		return
	}
	if text, ok := v.Addr().Interface().(encoding.TextUnmarshaler); ok {
		d.text(n, path, v, text)
		return
	}
	switch v.Kind() {
	case reflect.Pointer:
		fresh := reflect.New(v.Type().Elem())
		setDefaults(fresh.Elem())
		d.value(n, path, fresh.Elem())
		v.Set(fresh)
	case reflect.Struct:
		if n.Kind != yaml.MappingNode {
			d.mismatch(n, path, v.Type())
			return
		}
		d.structure(n, path, v)
	case reflect.Slice:
		d.list(n, path, v)
	case reflect.Map:
		d.mapping(n, path, v)
	case reflect.String:
		d.str(n, path, v)
	case reflect.Bool:
		d.boolean(n, path, v)
	default:
		d.number(n, path, v)
	}
}

// structure decodes a mapping into a struct. skip lists the keys that the caller has processed
// already.
func (d *decoder) structure(n *yaml.Node, path string, v reflect.Value, skip ...string) {
	d.origins[path] = Origin{File: d.file, Line: n.Line, Column: n.Column}
	fields := map[string]int{}
	var names []string
	for i := range v.NumField() {
		fields[fieldName(v.Type().Field(i))] = i
		names = append(names, fieldName(v.Type().Field(i)))
	}
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key := n.Content[i]
		if !d.key(key, path+"."+shorten(key.Value), seen) {
			continue
		}
		index, known := fields[key.Value]
		switch {
		case known:
			d.value(n.Content[i+1], path+"."+key.Value, v.Field(index))
		case !slices.Contains(skip, key.Value):
			d.unknown(key, path, append(names, skip...))
		}
	}
	for i := range v.NumField() {
		f := v.Type().Field(i)
		if _, given := seen[fieldName(f)]; !given && f.Tag.Get("jsonschema") == "required" {
			d.at(n, path+"."+fieldName(f), wrong{reason: "missing", expected: expectation(f.Type)})
		}
	}
}

// key reports whether a key of a mapping is valid, and adds a problem if it is not. path is the
// path of the value; seen maps the previous keys to their lines.
func (d *decoder) key(key *yaml.Node, path string, seen map[string]int) bool {
	if key.Kind != yaml.ScalarNode || key.Tag == "!!null" {
		d.add(key.Line, key.Column, parent(path), wrong{reason: "a key is " + describe(key), expected: "the name of a field"})
		return false
	}
	if key.Tag == "!!merge" {
		d.add(key.Line, key.Column, parent(path), wrong{reason: `the merge key "<<"`, expected: "the fields themselves"})
		return false
	}
	if line, twice := seen[key.Value]; twice {
		d.add(key.Line, key.Column, path, wrong{reason: fmt.Sprintf("given twice; the first is in line %d", line), expected: "one"})
		return false
	}
	seen[key.Value] = key.Line
	return true
}

// unknown adds a problem for an unknown field. The problem names the most similar known field, or
// the other blocks that have a field with this name.
func (d *decoder) unknown(key *yaml.Node, path string, known []string) {
	w := wrong{reason: "unknown field", nearest: nearest(key.Value, known)}
	if reason := fixedSettings()[path+"."+key.Value]; reason != "" {
		w = wrong{reason: "there is no such field: " + reason, hint: noRemedy}
	} else if w.nearest == "" {
		w.expected = oneOf(known)
		var found []string
		for _, k := range new(Config).kinds() {
			found = append(found, places(reflect.TypeOf(k.target()).Elem(), k.name, key.Value)...)
		}
		if len(found) > 0 {
			w.hint = "this field exists in " + strings.Join(found, ", ")
		}
	}
	d.add(key.Line, key.Column, path+"."+shorten(key.Value), w)
}

// places returns the paths of all structs below t that have a field with this name.
func places(t reflect.Type, path, name string) []string {
	switch {
	case isText(t):
		return nil
	case t.Kind() == reflect.Slice:
		return places(t.Elem(), path+"[]", name)
	case t.Kind() == reflect.Pointer:
		return places(t.Elem(), path, name)
	case t.Kind() != reflect.Struct:
		return nil
	}
	var found []string
	for i := range t.NumField() {
		f := t.Field(i)
		if fieldName(f) == name {
			found = append(found, path)
		}
		found = append(found, places(f.Type, path+"."+fieldName(f), name)...)
	}
	return found
}

// text decodes a scalar by means of UnmarshalText.
func (d *decoder) text(n *yaml.Node, path string, v reflect.Value, into encoding.TextUnmarshaler) {
	if n.Kind != yaml.ScalarNode || n.Tag == "!!bool" {
		d.mismatch(n, path, v.Type())
		return
	}
	err := into.UnmarshalText([]byte(n.Value))
	if err == nil && v.IsZero() && n.Value == "" {
		err = &wrong{reason: "is empty"} // netip parses "" as the zero value
	}
	if err == nil {
		return
	}
	var w *wrong
	if !errors.As(err, &w) {
		w = &wrong{reason: fmt.Sprintf("%s is not valid", quote(n.Value))}
		if _, isPrefix := into.(*netip.Prefix); isPrefix {
			w.reason = fmt.Sprintf("%s is not an address with a prefix length", quote(n.Value))
			if _, err := netip.ParseAddr(n.Value); err == nil {
				w.reason = fmt.Sprintf("%s has no prefix length", quote(n.Value))
			}
		} else if _, isAddr := into.(*netip.Addr); isAddr {
			w.reason = fmt.Sprintf("%s is not an IP address", quote(n.Value))
		}
	}
	if w.expected == "" {
		w.expected = expectation(v.Type())
	}
	d.at(n, path, *w)
}

// list decodes a sequence into a slice. Each item begins with the defaults of its type.
func (d *decoder) list(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.SequenceNode {
		d.mismatch(n, path, v.Type())
		return
	}
	items := reflect.MakeSlice(v.Type(), len(n.Content), len(n.Content))
	for i, child := range n.Content {
		setDefaults(items.Index(i))
		d.value(child, fmt.Sprintf("%s[%d]", path, i), items.Index(i))
	}
	v.Set(items)
}

// mapping decodes a map of strings or of booleans. In a map of strings, a value can be empty, which
// is common for labels, and an integer without quotes becomes a string.
func (d *decoder) mapping(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.MappingNode {
		d.mismatch(n, path, v.Type())
		return
	}
	m := reflect.MakeMapWithSize(v.Type(), len(n.Content)/2)
	seen := map[string]int{}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, child := n.Content[i], n.Content[i+1]
		at := path + `["` + shorten(key.Value) + `"]`
		if !d.key(key, at, seen) {
			continue
		}
		if v.Type().Elem().Kind() == reflect.String && child.Kind == yaml.ScalarNode && (child.Tag == "!!int" || child.Tag == "!!str" && child.Value == "") {
			d.origins[at] = Origin{File: d.file, Line: child.Line, Column: child.Column}
			m.SetMapIndex(reflect.ValueOf(key.Value), reflect.ValueOf(child.Value))
			continue
		}
		item := reflect.New(v.Type().Elem()).Elem()
		d.value(child, at, item)
		m.SetMapIndex(reflect.ValueOf(key.Value), item)
	}
	v.Set(m)
}

// str decodes a text, or a value of a type with a fixed list of names.
func (d *decoder) str(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind != yaml.ScalarNode || n.Tag != "!!str" {
		d.mismatch(n, path, v.Type())
		return
	}
	if names, ok := v.Interface().(enum); ok && !slices.Contains(names.Names(), n.Value) {
		d.at(n, path, wrong{reason: fmt.Sprintf("%s is not known", quote(n.Value)), expected: oneOf(names.Names()), nearest: nearest(n.Value, names.Names())})
		return
	}
	if n.Value == "" {
		d.at(n, path, wrong{reason: "is empty", expected: expectation(v.Type()), hint: "omit it if it is not needed"})
		return
	}
	v.SetString(n.Value)
}

// boolean decodes true or false.
func (d *decoder) boolean(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!bool" {
		v.SetBool(strings.EqualFold(n.Value, "true"))
		return
	}
	w := wrong{reason: "is " + describe(n), expected: expectation(v.Type())}
	if n.Kind == yaml.ScalarNode {
		switch strings.ToLower(n.Value) {
		case "yes", "on", "y", "1", "true", "enabled":
			w.nearest = "true"
		case "no", "off", "n", "0", "false", "disabled":
			w.nearest = "false"
		}
	}
	d.at(n, path, w)
}

// number decodes a decimal whole number.
func (d *decoder) number(n *yaml.Node, path string, v reflect.Value) {
	if n.Kind == yaml.ScalarNode && n.Tag == "!!float" && strings.Trim(n.Value, "0123456789") == "" {
		n.Tag = "!!int" // the library parses an integer that is too long as a float
	}
	if n.Kind != yaml.ScalarNode || n.Tag != "!!int" {
		d.mismatch(n, path, v.Type())
		return
	}
	switch i, err := strconv.ParseInt(n.Value, 10, 64); {
	case err != nil && errors.Is(err, strconv.ErrRange):
		d.at(n, path, wrong{reason: fmt.Sprintf("%s is too large", quote(n.Value)), expected: expectation(v.Type())})
	case err != nil:
		d.at(n, path, wrong{reason: fmt.Sprintf("%s is not written in decimal", quote(n.Value)), expected: expectation(v.Type())})
	case v.CanInt() && v.OverflowInt(i), v.CanUint() && (i < 0 || v.OverflowUint(uint64(i))):
		d.at(n, path, wrong{reason: fmt.Sprintf("%d is out of range", i), expected: expectation(v.Type())})
	case v.CanInt():
		v.SetInt(i)
	default:
		v.SetUint(uint64(i))
	}
}

// mismatch adds a problem for a node of a kind that does not fit the type.
func (d *decoder) mismatch(n *yaml.Node, path string, t reflect.Type) {
	w := wrong{reason: "is " + describe(n), expected: expectation(t)}
	switch {
	case t.Kind() == reflect.Slice && n.Kind != yaml.SequenceNode:
		w.hint = `write "- " before it`
	case t.Kind() == reflect.String && n.Kind == yaml.ScalarNode:
		w.hint = "put it in quotes"
	case n.Kind == yaml.ScalarNode && n.Tag == "!!str" && n.Style&(yaml.DoubleQuotedStyle|yaml.SingleQuotedStyle) != 0 && (t.Kind() == reflect.Int || t.Kind() == reflect.Uint32):
		w.hint = "leave out the quotes"
	}
	d.at(n, path, w)
}

// describe returns the kind of a node, without its content, which can be a secret.
func describe(n *yaml.Node) string {
	switch n.Kind {
	case yaml.MappingNode:
		return "a mapping"
	case yaml.SequenceNode:
		return "a list"
	case yaml.AliasNode:
		return "an alias"
	}
	switch n.Tag {
	case "!!bool":
		return "true or false"
	case "!!int":
		return "a number"
	case "!!float":
		return "a number with a fraction"
	case "!!null":
		return "empty"
	case "!!timestamp":
		return "a date"
	}
	return "text"
}

// expectation describes the accepted values of a type.
func expectation(t reflect.Type) string {
	if words := textExpectation(t); words != "" {
		return words
	}
	switch t.Kind() {
	case reflect.Pointer:
		return expectation(t.Elem())
	case reflect.Struct:
		var names []string
		for i := range t.NumField() {
			names = append(names, fieldName(t.Field(i)))
		}
		if len(names) == 1 {
			return "a mapping with the field " + names[0]
		}
		return "a mapping with the fields " + strings.Join(names, ", ")
	case reflect.Slice:
		return "a list; each item " + expectation(t.Elem())
	case reflect.Map:
		if t.Elem().Kind() == reflect.Bool {
			return "a mapping from names to true or false"
		}
		return "a mapping from text to text"
	case reflect.Bool:
		return "true or false"
	case reflect.String:
		if names, ok := reflect.Zero(t).Interface().(enum); ok {
			return oneOf(names.Names())
		}
		return "text"
	case reflect.Uint32:
		return "a whole number, 0 to 4294967295"
	}
	return "a whole number"
}

// textExpectation describes the accepted values of a type with UnmarshalText; it returns "" for all
// other types.
func textExpectation(t reflect.Type) string {
	switch t {
	case reflect.TypeFor[netip.Prefix]():
		return "an address with its prefix length, such as 10.0.0.5/24"
	case reflect.TypeFor[netip.Addr]():
		return "an IP address, such as 10.0.0.1"
	case reflect.TypeFor[Bytes]():
		return wantBytes
	case reflect.TypeFor[AddressRange]():
		return wantAddressRange
	case reflect.TypeFor[SizeRange]():
		return wantRange
	case reflect.TypeFor[MilliCPU]():
		return wantCPU
	case reflect.TypeFor[Duration]():
		return wantDuration
	case reflect.TypeFor[MAC]():
		return "a hardware address, such as 52:54:00:12:34:56"
	case reflect.TypeFor[Endpoint]():
		return "https://host:port"
	case reflect.TypeFor[StoreEndpoint]():
		return wantStore
	case reflect.TypeFor[Recipient]():
		return wantRecipient
	case reflect.TypeFor[ProxyURL]():
		return wantProxyURL
	case reflect.TypeFor[DirectHosts]():
		return wantDirectHosts
	case reflect.TypeFor[HostPort]():
		return "host:port"
	case reflect.TypeFor[NameServer]():
		return wantNameServer
	case reflect.TypeFor[Certificate]():
		return "a certificate in PEM"
	case reflect.TypeFor[Bundle]():
		return "certificates in PEM"
	case reflect.TypeFor[PrivateKey]():
		return "a private key in PEM"
	case reflect.TypeFor[Manifest]():
		return "objects of Kubernetes, as one text of YAML documents"
	case reflect.TypeFor[APIGroup]():
		return `a group such as apps; "" is the core group`
	case reflect.TypeFor[AtLeast]():
		return wantAtLeast
	case reflect.TypeFor[SigningKey]():
		return wantSigningKey
	case reflect.TypeFor[RepositoryPattern]():
		return wantRepositoryPattern
	case reflect.TypeFor[Artifact]():
		return wantArtifact
	case reflect.TypeFor[RegistryPath]():
		return wantRegistry
	case reflect.TypeFor[RegistryName]():
		return wantRegistryName
	case reflect.TypeFor[Secret]():
		return "text"
	case reflect.TypeFor[EncryptionKey]():
		return "32 random bytes in base64"
	case reflect.TypeFor[PublicKey]():
		return "32 bytes in base64"
	case reflect.TypeFor[AddrPort]():
		return "an IP address and a port"
	case reflect.TypeFor[Threshold]():
		return wantThreshold
	case reflect.TypeFor[CPUSet]():
		return wantCPUSet
	}
	return ""
}

// isText reports whether a type has UnmarshalText.
func isText(t reflect.Type) bool {
	return reflect.PointerTo(t).Implements(reflect.TypeFor[encoding.TextUnmarshaler]())
}

// fieldName returns the name that a field has in the documents (tag yaml).
func fieldName(f reflect.StructField) string {
	name, _, _ := strings.Cut(f.Tag.Get("yaml"), ",")
	return name
}

// setDefaults sets the default values of v, if its type has defaults.
func setDefaults(v reflect.Value) {
	if d, ok := v.Addr().Interface().(defaulter); ok {
		d.defaults()
	}
}

// oneOf returns the names for a message: "a, b or c".
func oneOf(names []string) string {
	if len(names) == 1 {
		return names[0]
	}
	return strings.Join(names[:len(names)-1], ", ") + " or " + names[len(names)-1]
}

// shorten returns a key of the file in a short and printable form, for a message or a path.
func shorten(key string) string {
	q := quote(key)
	return q[1 : len(q)-1]
}
