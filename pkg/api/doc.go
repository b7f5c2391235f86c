// Package api is the management API of an Orlop OS machine as generated Go code. Its sources are
// three files: orlop.proto documents the API; apid.proto is the interface between apid and
// machined; machineobject.proto is the interface between process "node" and machined. The Go files
// without the ending .pb.go are written by hand: for example, caller.go has the identity of a
// caller, which apid sends to machined as metadata of the call.
//
// To regenerate the code, install Debian's protobuf-compiler and run `go generate ./pkg/api` from
// anywhere in the repository.
package api

//go:generate sh -c "go build -o \"$(go env GOCACHE)/orlop-protoc/\" google.golang.org/protobuf/cmd/protoc-gen-go google.golang.org/grpc/cmd/protoc-gen-go-grpc && PATH=\"$(go env GOCACHE)/orlop-protoc:$PATH\" protoc --go_out=. --go_opt=paths=source_relative --go-grpc_out=. --go-grpc_opt=paths=source_relative orlop.proto apid.proto machineobject.proto"
