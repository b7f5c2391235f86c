// Package api is the management API of an Orlop OS machine as generated Go code. Its source is
// orlop.proto, which documents the API, apid.proto, the interface between apid and machined, and
// machineobject.proto, the interface between process "node" and machined. Only the files without
// the ending .pb.go are written by hand; caller.go has the caller of a method, which apid sends to
// machined beside the messages.
//
// To regenerate it, install Debian's protobuf-compiler and run `go generate ./pkg/api` from
// anywhere in the repository.
package api

//go:generate sh -c "go build -o \"$(go env GOCACHE)/orlop-protoc/\" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc && PATH=\"$(go env GOCACHE)/orlop-protoc:$PATH\" protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative orlop.proto apid.proto machineobject.proto"
