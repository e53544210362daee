// sort
