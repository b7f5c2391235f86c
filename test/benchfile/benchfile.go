// Package benchfile writes the file of figures that test/bench and test/clusterbench share. Each of
// these programs replaces its own part of the file and leaves the other part unchanged.
package benchfile

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"io/fs"
	"os"

	"github.com/google/renameio/v2"
)

// Cluster is the name of the field with the figures of a whole cluster, which test/clusterbench
// writes. The other fields are the figures of single machines.
const Cluster = "cluster"

// Read returns the content of the field with this name. It returns nil if the file or the field
// does not exist.
func Read(file, name string) (json.RawMessage, error) {
	fields, err := load(file)
	if err != nil {
		return nil, err
	}
	for _, f := range fields {
		if f.name == name {
			return f.value, nil
		}
	}
	return nil, nil
}

// WriteCluster replaces the field Cluster by value, and leaves the other fields unchanged.
func WriteCluster(file string, value any) error {
	fields, err := load(file)
	if err != nil {
		return err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("%s: cannot format: %w", file, err)
	}
	return write(file, append(without(fields), field{Cluster, text}))
}

// WriteOthers replaces all fields except Cluster by the fields of value. The JSON form of value has
// to be an object.
func WriteOthers(file string, value any) error {
	before, err := load(file)
	if err != nil {
		return err
	}
	text, err := json.Marshal(value)
	if err != nil {
		return fmt.Errorf("%s: cannot format: %w", file, err)
	}
	fields, err := parse(text)
	if err != nil {
		return fmt.Errorf("%s: cannot format: %w", file, err)
	}
	for _, f := range before {
		if f.name == Cluster {
			fields = append(without(fields), f)
		}
	}
	return write(file, fields)
}

// field is a field of a JSON object. A list of fields preserves the order of the fields in the
// file.
type field struct {
	name  string
	value json.RawMessage
}

// without returns the fields except the field Cluster.
func without(fields []field) []field {
	var rest []field
	for _, f := range fields {
		if f.name != Cluster {
			rest = append(rest, f)
		}
	}
	return rest
}

func load(file string) ([]field, error) {
	text, err := os.ReadFile(file)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, nil
	}
	if err != nil {
		return nil, fmt.Errorf("figures: cannot read: %w", err)
	}
	fields, err := parse(text)
	if err != nil {
		return nil, fmt.Errorf("%s: cannot read the present figures: %w; remove the file if you do not need these figures", file, err)
	}
	return fields, nil
}

func parse(text []byte) ([]field, error) {
	d := json.NewDecoder(bytes.NewReader(text))
	if begin, err := d.Token(); err != nil {
		return nil, err
	} else if begin != json.Delim('{') {
		return nil, errors.New("the content is no JSON object")
	}
	var fields []field
	for d.More() {
		name, err := d.Token()
		if err != nil {
			return nil, err
		}
		f := field{name: name.(string)} // the key of an object is always a string
		if err := d.Decode(&f.value); err != nil {
			return nil, err
		}
		fields = append(fields, f)
	}
	_, err := d.Token()
	return fields, err
}

func write(file string, fields []field) error {
	var text bytes.Buffer
	text.WriteByte('{')
	for i, f := range fields {
		if i > 0 {
			text.WriteByte(',')
		}
		name, err := json.Marshal(f.name)
		if err != nil {
			return fmt.Errorf("%s: cannot format: %w", file, err)
		}
		text.Write(name)
		text.WriteByte(':')
		text.Write(f.value)
	}
	text.WriteByte('}')
	var indented bytes.Buffer
	if err := json.Indent(&indented, text.Bytes(), "", "  "); err != nil {
		return fmt.Errorf("%s: cannot format: %w", file, err)
	}
	indented.WriteByte('\n')
	if err := renameio.WriteFile(file, indented.Bytes(), 0o644); err != nil {
		return fmt.Errorf("figures: cannot write: %w", err)
	}
	return nil
}
