package approval

import (
	"encoding/base64"
	"fmt"

	"google.golang.org/protobuf/proto"
	"google.golang.org/protobuf/reflect/protoreflect"
	"google.golang.org/protobuf/types/known/durationpb"
)

// Field is the name of the field of a request message that carries the approval.
const Field = "approval"

// ContentOf returns the content of a request message: the text of each field that is set, by the
// path of the field ("drain.policy"). It leaves out the field that carries the approval. It fails
// for a message with a field that this version does not know: the caller could have added this
// field after the approval, and a later version could obey it.
func ContentOf(m proto.Message) (map[string]string, error) {
	out := map[string]string{}
	err := addContent(out, "", m.ProtoReflect())
	delete(out, Field)
	return out, err
}

// addContent adds the fields of a message, with the prefix of their path.
func addContent(out map[string]string, prefix string, m protoreflect.Message) (err error) {
	if len(m.GetUnknown()) > 0 {
		return fmt.Errorf("approval: the request %s has a field that this version does not know; use a tool of the version of the machine", m.Descriptor().Name())
	}
	m.Range(func(f protoreflect.FieldDescriptor, v protoreflect.Value) bool {
		name := prefix + string(f.Name())
		switch {
		case f.IsMap():
			err = fmt.Errorf("approval: the field %s is a map, which no approval can contain", name)
		case f.IsList():
			for i := range v.List().Len() {
				if err = addValue(out, fmt.Sprintf("%s[%d]", name, i), f, v.List().Get(i)); err != nil {
					break
				}
			}
		default:
			err = addValue(out, name, f, v)
		}
		return err == nil
	})
	return err
}

// addValue adds a single value.
func addValue(out map[string]string, name string, f protoreflect.FieldDescriptor, v protoreflect.Value) error {
	switch f.Kind() {
	case protoreflect.MessageKind, protoreflect.GroupKind:
		// An empty message can mean another call than a missing message.
		out[name] = "set"
		if d, ok := v.Message().Interface().(*durationpb.Duration); ok && len(d.ProtoReflect().GetUnknown()) == 0 && d.IsValid() {
			out[name] = d.AsDuration().String()
			return nil
		}
		return addContent(out, name+".", v.Message())
	case protoreflect.EnumKind:
		out[name] = fmt.Sprint(v.Enum())
		if known := f.Enum().Values().ByNumber(v.Enum()); known != nil {
			out[name] = string(known.Name())
		}
	case protoreflect.BytesKind:
		out[name] = base64.StdEncoding.EncodeToString(v.Bytes())
	default:
		out[name] = v.String()
	}
	return nil
}
